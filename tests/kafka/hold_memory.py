"""What a hold is remembered in, without a journal."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from storage_engine.model.hold import Drift


@dataclass
class Memory:
    """Implements :class:`storage_engine.model.hold.HoldMemory` without a journal."""

    state: Any = None
    drift: list[Drift] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    def of_others(self) -> list[Any]:
        return self.others

    def alone(self, cluster: str) -> Any:
        return nullcontext(lambda: None)

    def load(self) -> Any:
        return self.state

    def save(self, state: Any) -> None:
        self.state = state

    def record_drift(self, found: Any) -> None:
        self.drift += found
