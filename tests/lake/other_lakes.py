"""Lakes whose catalog and warehouse lie elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from storage_engine.lake.catalog.config import LakeConfig


def other_lake(directory: Path, catalog: Path, warehouse: Path) -> LakeConfig:
    """A lake whose ``lake.json`` names a catalog and a warehouse that lie elsewhere."""
    directory.mkdir(exist_ok=True)
    found = {"type": "sql", "uri": f"sqlite:///{catalog}?timeout=60", "warehouse": f"file://{warehouse}"}
    (directory / "lake.json").write_text(json.dumps(found))
    return LakeConfig.local(directory)
