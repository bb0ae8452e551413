"""Arrow without pandas, whose import takes longer than most commands."""

from __future__ import annotations

import sys
from typing import Any


class _NoPandas:
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname}: nothing here works with it", name=fullname)


def load_arrow_alone() -> None:
    """Import Arrow and let it find no pandas. For a process of our own: who gives Arrow a column of pandas
    before a table was made a frame would find its missing values unmarked.

    Arrow looks for pandas when it makes its first value, and then only where a table is to become a frame
    (``_PandasAPIShim._check_import``). That works as ever.
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
