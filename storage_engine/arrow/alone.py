"""Import of Arrow without pandas, which takes longer to import than most commands run."""

from __future__ import annotations

import sys
from typing import Any


class _NoPandas:
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname} is hidden during the import of Arrow", name=fullname)


def load_arrow_alone() -> None:
    """Import Arrow, and hide pandas from Arrow during the import.

    Arrow looks for pandas when it makes its first value, and again when a table is converted to a frame
    (``_PandasAPIShim._check_import``). The conversion still works. Call this only in our own processes: until
    the first conversion, Arrow doesn't recognise the missing values of a pandas column.
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
