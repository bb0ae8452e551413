"""What retention needs of a broker's store. A new broker is a new package with a ``broker`` module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Protocol

from storage_engine.exceptions import BadInputError
from storage_engine.model.owed import Owed
from storage_engine.model.plan import DependentFile, Plan, PlanRequest, Trigger
from storage_engine.model.store import StoreSnapshot
from storage_engine.model.watch import Watch


def broker_module(broker: str, part: str) -> ModuleType:
    """The module ``storage_engine.<broker>.<part>``: a new broker is a new package, and nobody lists it.

    :raises BadInputError: no such broker, or it has no such part.
    """
    name = f"storage_engine.{broker}.{part}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, f"storage_engine.{broker}"):
            raise
        raise BadInputError(f"broker: expected one that has a {name} module, found {broker!r}") from None


class Held(Protocol):
    """A store that is held."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What could not be checked while it was taken."""
        ...


class BrokerStore(Protocol):
    """One store, with the broker's own settings and rules. Only ``delete_dependents`` changes files."""

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Read what the store is now.

        :raises StoreNotFoundError: there is no store.
        :raises StoreLayoutError: its files don't form one contiguous log.
        """
        ...

    def watch(self, now_ms: int) -> Watch:
        """The causes that hold now by clock and disks alone, for who waits for one; reads no segment."""
        ...

    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        """The causes that hold now, and notices for a person."""
        ...

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Decide, for every segment, whether it goes and why. Pure."""
        ...

    def owed(self, snapshot: StoreSnapshot) -> tuple[Owed, ...]:
        """What the broker has taken and still has to deliver or to decide; what can't be read is unknown."""
        ...

    def hold(self) -> AbstractContextManager[Held]:
        """Keep the broker, and everybody else who asks, from changing the store.

        :raises StoreBusyError: somebody has it.
        """
        ...

    def dependents(self, min_offset: int) -> tuple[DependentFile, ...]:
        """The files that point only below ``min_offset``, by the broker's own rule."""
        ...

    def delete_dependents(self, files: Sequence[DependentFile]) -> None:
        """Delete them, in an order that is safe to be cut short; their directories are flushed."""
        ...

    def checkpoint(self) -> Mapping[str, int]:
        """The values of the broker's checkpoint by name; empty when it has none."""
        ...

    def flush_paths(self, snapshot: StoreSnapshot) -> tuple[Path, ...]:
        """Files and directories whose state matters to a start of the broker after a cleanup."""
        ...


class OpenStore(Protocol):
    """Signature of ``open_store`` in a broker's ``broker`` module."""

    def __call__(
        self, root: str, broker_conf: str | None, overrides: Mapping[str, str], time_zone: str | None
    ) -> BrokerStore: ...
