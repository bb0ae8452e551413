"""A shield is as large as what a broker deletes before anybody acts, or as all there is to lose."""

from __future__ import annotations

import pytest

from storage_engine.model.hold import ShieldNeed
from storage_engine.model.settings.policy import ShieldMode
from storage_engine.model.store import FileFacts, Lineages, Segment, SegmentState
from storage_engine.shield.index import (
    Link,
    LinkKind,
    Place,
    SeenLink,
    Shield,
    choose_links,
    pick_given_up,
    segments_needed,
    without_use,
)

SIZE = 1 << 30
BROKER = ShieldNeed(batch_segments=10, pass_interval_ms=10_000, disk_bytes=1000 * SIZE, used_percent=80)
STOPPED = ShieldNeed(disk_bytes=1000 * SIZE, used_percent=80)
NOTHING = Shield()


def segment(number: int) -> Segment:
    facts = FileFacts(f"/log/{number * SIZE:020d}", 1, 100 + number, SIZE, 1, 1)
    return Segment("commitlog", number * SIZE, facts, SegmentState.SEALED)


def link(number: int, place: Place, other_names: int = 0) -> SeenLink:
    facts = segment(number).facts
    recorded = Link("commitlog", number * SIZE, 1, LinkKind.HARD_LINK, facts, facts)
    return SeenLink(recorded, facts, other_names, place, is_same=True)


BACKLOG = [segment(number) for number in range(97)]


@pytest.mark.parametrize(
    ("batch", "interval_ms", "reaction_ms", "needed"),
    [(10, 10_000, 10_000, 20), (10, 10_000, 10_001, 30), (10, 60_000, 10_000, 20), (50, 5_000, 10_000, 150)],
)
def test_it_covers_the_passes_until_somebody_has_acted(
    batch: int, interval_ms: int, reaction_ms: int, needed: int
) -> None:
    assert segments_needed(batch, interval_ms, reaction_ms) == needed


def test_a_watch_keeps_the_oldest_that_are_unproven() -> None:
    chosen = choose_links(BACKLOG, NOTHING, BROKER, ShieldMode.AUTO, tends=True)
    assert chosen.segments == tuple(BACKLOG[:20])
    assert chosen.why_not == ""


def test_it_takes_at_most_a_share_of_the_disk_with_what_it_has_alone() -> None:
    small = ShieldNeed(10, 10_000, disk_bytes=200 * SIZE, used_percent=80)
    alone = Shield((link(200, Place.GONE), link(201, Place.GONE)))
    chosen = choose_links(BACKLOG, alone, small, ShieldMode.AUTO, tends=True)
    assert chosen.segments == tuple(BACKLOG[:8])
    assert "5 % of the disk" in chosen.why_not


def test_a_clone_that_has_what_the_log_has_no_more_takes_of_the_share() -> None:
    small = ShieldNeed(10, 10_000, disk_bytes=200 * SIZE, used_percent=80)
    shield = Shield((link(200, Place.IN_LOG), link(201, Place.IN_LOG)))
    chosen = choose_links(BACKLOG, shield, small, ShieldMode.AUTO, tends=True, written=shield.links[:1])
    assert chosen.segments == tuple(BACKLOG[:9])


@pytest.mark.parametrize(
    ("need", "mode", "why_not"),
    [
        (BROKER, ShieldMode.AUTO, "no watch is alive"),
        (BROKER, ShieldMode.ON, "no watch is alive"),
        (BROKER, ShieldMode.OFF, "shield: off"),
        (STOPPED, ShieldMode.AUTO, "no broker runs"),
        (ShieldNeed(10, 10_000, refusal="the store isn't held"), ShieldMode.ON, "isn't held"),
        (ShieldNeed(10, 10_000), ShieldMode.AUTO, "can't be measured"),
    ],
)
def test_there_is_none_that_saves_nothing(need: ShieldNeed, mode: ShieldMode, why_not: str) -> None:
    chosen = choose_links(BACKLOG, NOTHING, need, mode, tends=False)
    assert chosen.segments == ()
    assert why_not in chosen.why_not


def test_without_a_watch_it_keeps_the_whole_backlog_or_nothing() -> None:
    assert choose_links(BACKLOG[:50], NOTHING, BROKER, ShieldMode.ON, tends=False).segments == tuple(
        BACKLOG[:50]
    )
    assert choose_links(BACKLOG[:51], NOTHING, BROKER, ShieldMode.ON, tends=False).segments == ()
    assert choose_links(BACKLOG, NOTHING, STOPPED, ShieldMode.ON, tends=False).segments == tuple(BACKLOG)


def test_links_that_are_of_no_use_are_those_of_the_log_alone() -> None:
    shield = Shield((link(0, Place.IN_LOG, 1), link(1, Place.IN_LOG, 1), link(2, Place.GONE)))
    assert without_use(shield, [segment(0)], Lineages(1)) == (shield.links[1],)
    assert without_use(shield, [segment(0)], Lineages(1, {"commitlog": 2})) == shield.links[:2]


@pytest.mark.parametrize("used_percent", [None, 0, 95])
def test_nothing_is_given_up_before_the_disk_is_too_full(used_percent: int | None) -> None:
    assert pick_given_up(Shield((link(0, Place.GONE),)), used_percent, 95) is None


def test_the_oldest_that_gives_space_back_is_given_up_first() -> None:
    links = (link(0, Place.IN_LOG, 1), link(1, Place.GONE, 1), link(2, Place.UNKNOWN), link(3, Place.GONE))
    assert pick_given_up(Shield(links), 96, 95) == links[3]
    assert pick_given_up(Shield(links[:3]), 96, 95) is None
