"""What a store's broker says of a shield: how large it has to be, and whether there may be one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShieldNeed:
    """
    :param batch_segments: how many segments the broker deletes in a pass; None: none runs, so that only a
        shield of the whole backlog is of use.
    :param pass_interval_ms: from one pass to the next; None likewise.
    :param disk_bytes: size of the smallest disk of the log; None: it can't be measured.
    :param used_percent: how full the fullest of these disks is, as the broker counts; None likewise.
    :param is_tended: a watch is alive that acts on what is deleted.
    :param refusal: why there may be none now; "" where there may.
    """

    batch_segments: int | None = None
    pass_interval_ms: int | None = None
    disk_bytes: int | None = None
    used_percent: int | None = None
    is_tended: bool = False
    refusal: str = ""
