"""What somebody else did to held topics: named, with what it was, what it is, and between which moments."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from storage_engine.kafka.format.checkpoints import LeaderEpoch
from storage_engine.kafka.format.layout import LivePartition
from storage_engine.kafka.hold.drift import FoundLogs, all_drift, known_log, state_after_drift
from storage_engine.kafka.hold.hold_state import (
    RETENTION_MS,
    HeldSetting,
    HoldState,
    KnownLog,
    TopicSetting,
)
from storage_engine.model.hold import Drift, DriftKind

TOPIC_ID = uuid.UUID(int=7)
LOG = "orders-0"
HELD = HeldSetting("orders", str(TOPIC_ID), RETENTION_MS, TopicSetting(5, is_own=False), (9,), True, 0)
KNOWN = KnownLog(str(TOPIC_ID), 1, 4, (1, 2), 100, 500)
STATE = HoldState(1_000_000, (HELD,), {LOG: KNOWN})
LIVE = LivePartition(TOPIC_ID, 1, 100, 500, 500, replicas=(1, 2), leader_epoch=4)
OURS = TopicSetting(9, is_own=True)


def drift(
    live: LivePartition | None = LIVE,
    setting: TopicSetting | None = OURS,
    state: HoldState = STATE,
    others: tuple[HoldState, ...] = (),
    epochs: tuple[LeaderEpoch, ...] | str = (),
) -> list[Drift]:
    settings = {} if setting is None else {"orders": {RETENTION_MS: setting}}
    logs = FoundLogs({} if live is None else {LOG: live}, {LOG}, epochs={LOG: epochs})
    return list(all_drift(state, logs, settings, 2_000_000, others))


def gone(live: LivePartition | None, failed: dict[str, str] | None = None) -> list[Drift]:
    """Drift of a log that the node, 1, has no directory of any more."""
    elsewhere = {} if live is None else {LOG: live}
    logs = FoundLogs({}, set(), elsewhere, failed=failed or {}, node_id=1)
    return list(all_drift(STATE, logs, {}, 2_000_000))


def test_as_it_was_left_is_no_drift() -> None:
    assert drift() == []
    # What isn't answered is unknown, and nobody's doing.
    assert drift(None, None) == []
    assert drift(LivePartition()) == []
    grown = replace(LIVE, high_watermark=600, last_stable_offset=550, leader_epoch=5)
    assert drift(grown) == []


@pytest.mark.parametrize(
    "setting", [TopicSetting(5, False), TopicSetting(5, True), TopicSetting(9, False), TopicSetting(-1, True)]
)
def test_a_setting_that_is_not_ours_any_more_is_named(setting: TopicSetting) -> None:
    (one,) = drift(setting=setting)
    assert one.kind is DriftKind.SETTING_CHANGED
    assert f"retention.ms: expected 9, which the hold has set, found {setting.value}" in one.detail
    assert "between 1970-01-01 00:16:40Z and 1970-01-01 00:33:20Z" in one.detail


def test_a_setting_that_may_not_have_been_set_yet_is_nobodys() -> None:
    unset = replace(STATE, settings=(replace(HELD, is_set=False),))
    assert drift(setting=HELD.original, state=unset) == []
    assert drift(setting=OURS, state=unset) == []
    assert len(drift(setting=TopicSetting(6, True), state=unset)) == 1


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"topic_id": uuid.UUID(int=8)}, DriftKind.TOPIC_REPLACED, "was deleted and made again"),
        ({"leader": 2}, DriftKind.LEADER_MOVED, "found 2 of replicas 1, 2"),
        ({"replicas": (1, 3)}, DriftKind.REASSIGNED, "found 1, 3: it was reassigned"),
        ({"log_start": 150}, DriftKind.SEGMENT_GONE, "records of offsets [100, 150) went"),
        ({"high_watermark": 450}, DriftKind.RECORDS_CUT, "found up to 450"),
    ],
)
def test_what_became_of_a_log_is_named(change: dict[str, object], kind: DriftKind, said: str) -> None:
    (one,) = drift(replace(LIVE, **change))  # type: ignore[arg-type]
    assert (one.kind, one.log) == (kind, LOG)
    assert said in one.detail


def test_the_settings_of_a_topic_that_was_made_again_are_nobodys_change() -> None:
    replaced = replace(LIVE, topic_id=uuid.UUID(int=8))
    (one,) = drift(replaced, TopicSetting(5, is_own=True))
    assert one.kind is DriftKind.TOPIC_REPLACED
    # Of a topic whose id the cluster doesn't tell, its settings still tell.
    assert [it.kind for it in drift(replace(LIVE, topic_id=None), TopicSetting(5, True))] == [
        DriftKind.SETTING_CHANGED
    ]


@pytest.mark.parametrize("live", [replace(LIVE, topic_id=uuid.UUID(int=8)), LivePartition()])
def test_what_a_topic_that_is_no_more_had_is_said_with_its_identity(live: LivePartition) -> None:
    released = replace(KNOWN, let_go=150)
    for here in {LOG} if live.topic_id else set(), set():
        logs = FoundLogs({LOG: live}, here, {} if here else {LOG: live}, cluster_id="cluster")
        (one,) = all_drift(replace(STATE, logs={LOG: released}), logs, {}, 2_000_000)
        assert one.kind is DriftKind.TOPIC_REPLACED
        assert (one.start_offset, one.end_offset) == (150, 500)
        assert one.log_id == "cluster/AAAAAAAAAAAAAAAAAAAABw/0"
        assert "it had records of offsets [150, 500); what came after that is unknown" in one.detail
    (one,) = all_drift(replace(STATE, logs={LOG: replace(KNOWN, let_go=500)}), logs, {}, 2_000_000)
    assert (one.start_offset, one.end_offset, one.log_id) == (-1, -1, "")
    assert "it had no records" in one.detail


def test_what_we_let_go_is_our_doing_and_no_more() -> None:
    state = replace(STATE, logs={LOG: replace(KNOWN, let_go=150)})
    assert drift(replace(LIVE, log_start=150), state=state) == []
    assert drift(replace(LIVE, log_start=120), state=state) == []
    (one,) = drift(replace(LIVE, log_start=160), state=state)
    assert (one.start_offset, one.end_offset) == (150, 160)


def test_a_log_that_is_not_here_any_more_is_named_once() -> None:
    (one,) = gone(None)
    assert one.kind is DriftKind.TOPIC_REPLACED
    found = state_after_drift(STATE, FoundLogs({}, set()), {})
    # Known while its topic is held, and named no more.
    assert found.logs == {LOG: replace(KNOWN, is_away=True)}
    assert list(all_drift(found, FoundLogs({}, set()), {}, 2_000_000)) == []
    assert state_after_drift(replace(STATE, settings=()), FoundLogs({}, set()), {}).logs == {}


def test_why_a_log_is_not_here_any_more_is_told_by_the_cluster() -> None:
    (one,) = gone(replace(LIVE, replicas=(2, 3)))
    assert (one.kind, one.log) == (DriftKind.REASSIGNED, LOG)
    assert "its replicas are on nodes 2, 3, and were on 1, 2" in one.detail
    (one,) = gone(replace(LIVE, topic_id=uuid.UUID(int=8)))
    assert one.kind is DriftKind.TOPIC_REPLACED
    assert "made again" in one.detail
    (one,) = gone(LivePartition(refused=("topic: no such topic",)))
    assert one.kind is DriftKind.TOPIC_REPLACED
    assert "the cluster says: topic: no such topic" in one.detail
    # The cluster counts on a replica here, so that the topic is there, and the disk isn't.
    (one,) = gone(LIVE)
    assert one.kind is DriftKind.DIRECTORY_FAILED
    assert "which has a replica of it by the cluster's word" in one.detail


def test_what_lies_in_a_failed_directory_is_unknown_and_remembered() -> None:
    failed = {"/disk2": "Input/output error"}
    for live in (LIVE, None, LivePartition()):
        (one,) = gone(live, failed)
        assert one.kind is DriftKind.DIRECTORY_FAILED
        assert "/disk2" in one.detail
        elsewhere = {} if live is None else {LOG: live}
        found = FoundLogs({}, set(), elsewhere, failed=failed, node_id=1)
        assert state_after_drift(STATE, found, {}) == STATE
    # What moved away isn't in it.
    kinds = [one.kind for one in gone(replace(LIVE, replicas=(2, 3)), failed)]
    assert kinds == [DriftKind.DIRECTORY_FAILED, DriftKind.REASSIGNED]


def test_a_later_leader_that_took_others_records_below_the_known_end_is_an_unclean_election() -> None:
    later = replace(LIVE, leader_epoch=6, high_watermark=700)
    clean = (LeaderEpoch(2, 0), LeaderEpoch(4, 300), LeaderEpoch(6, 500))
    assert drift(later, epochs=clean) == []
    (one,) = drift(later, epochs=(*clean[:2], LeaderEpoch(6, 480)))
    assert (one.kind, one.start_offset, one.end_offset) == (DriftKind.RECORDS_CUT, 480, 500)
    assert "the leader of epoch 6 took others from offset 480 on" in one.detail
    # Its own epoch began below that end, of course.
    assert drift(later, epochs=(LeaderEpoch(4, 480), LeaderEpoch(6, 500))) == []
    (one,) = drift(later, epochs="no such file")
    assert "is unknown" in one.detail
    # A known end that isn't reached says more.
    (one,) = drift(replace(later, high_watermark=490), epochs=(*clean[:2], LeaderEpoch(6, 480)))
    assert one.start_offset == 490


def test_what_another_store_of_the_journal_did_is_no_drift() -> None:
    other = HoldState(
        1_500_000,
        (replace(HELD, ours=(12,)),),
        {LOG: replace(KNOWN, let_go=180)},
    )
    assert drift(setting=TopicSetting(12, is_own=True), others=(other,)) == []
    assert len(drift(setting=TopicSetting(12, is_own=False), others=(other,))) == 1
    assert drift(replace(LIVE, log_start=180), others=(other,)) == []
    (one,) = drift(replace(LIVE, log_start=190), others=(other,))
    assert (one.start_offset, one.end_offset) == (180, 190)
    # Of another topic of that name it tells nothing.
    strange = replace(other, logs={LOG: replace(KNOWN, topic_id="other", let_go=180)})
    assert len(drift(replace(LIVE, log_start=180), others=(strange,))) == 1
    # The setting is still ours to put back.
    logs = FoundLogs({LOG: LIVE}, {LOG})
    theirs = {"orders": {RETENTION_MS: TopicSetting(12, is_own=True)}}
    assert state_after_drift(STATE, logs, theirs, (other,)).settings == (HELD,)


def test_what_is_found_goes_on_and_what_others_set_is_theirs() -> None:
    theirs = {"orders": {RETENTION_MS: TopicSetting(6, is_own=True)}}
    logs = FoundLogs({LOG: LIVE}, {LOG})
    assert state_after_drift(STATE, logs, theirs).settings == ()
    unset = replace(STATE, settings=(replace(HELD, ours=(7, 9), is_set=False),))
    (kept,) = state_after_drift(unset, logs, {"orders": {RETENTION_MS: OURS}}).settings
    assert (kept.is_set, kept.ours) == (True, (9,))
    # Of a topic that isn't answered nothing is forgotten.
    assert state_after_drift(STATE, FoundLogs({}, {LOG}), {}) == STATE
    other = replace(LIVE, topic_id=uuid.UUID(int=8))
    assert state_after_drift(STATE, FoundLogs({LOG: other}, {LOG}), {}) == HoldState(1_000_000)


def test_a_log_is_remembered_only_as_far_as_all_of_it_is_known() -> None:
    found = replace(LIVE, log_start=200, high_watermark=900, leader=2, leader_epoch=6)
    assert known_log(found, replace(KNOWN, let_go=150)) == KnownLog(
        str(TOPIC_ID), 2, 6, (1, 2), 200, 900, let_go=150
    )
    for missing in ("topic_id", "leader", "log_start", "high_watermark"):
        assert known_log(replace(found, **{missing: None}), KNOWN) is KNOWN
        assert known_log(replace(found, **{missing: None}), None) is None
