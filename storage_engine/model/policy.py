"""Our own settings, beyond what the broker's config says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ArchiveMode(StrEnum):
    REQUIRED = "required"
    OFF = "off"


class LagPolicy(StrEnum):
    BLOCK = "block"
    """Segments that some group still has to read stay."""
    WARN = "warn"
    """They go, and the report says whose messages are from now on only in the lake."""
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Policy:
    archive: ArchiveMode = ArchiveMode.REQUIRED
    lag_policy: LagPolicy = LagPolicy.WARN
