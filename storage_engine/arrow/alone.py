"""Import of Arrow without pandas. The import of pandas takes longer than most commands."""

from __future__ import annotations

import sys
from typing import Any


class _NoPandas:
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname}: nothing here works with it", name=fullname)


def load_arrow_alone() -> None:
    """Import Arrow in such a way that it doesn't find pandas.

    Only for our own processes: if a pandas column is given to Arrow before any table became a frame, its
    missing values aren't marked. Arrow looks for pandas when it makes its first value, and again when a table
    is to become a frame (``_PandasAPIShim._check_import``). The latter still works.
    """
    if "pandas" in sys.modules:
        return
    refusing: Any = _NoPandas()
    sys.meta_path.insert(0, refusing)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(refusing)
