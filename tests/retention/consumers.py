"""Consumers of a sample store that have read more, or less, than it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from storage_engine.retention.store.managed_store import ManagedStore


def move_group(store: ManagedStore, change: Callable[[int], int]) -> None:
    """Move cg_orders in every queue of its topic, as the broker writes it down."""
    path = Path(store.root) / "config" / "lmqConsumerOffset.json"
    before, after = path.read_text().split('"orders@cg_orders":{')
    table, end, rest = after.partition("}")
    moved = re.sub(r":\s*(\d+)", lambda at: f":{change(int(at[1]))}", table)
    path.write_text(f'{before}"orders@cg_orders":{{{moved}{end}{rest}')
