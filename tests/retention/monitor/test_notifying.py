"""Alarms are told once when they begin and once when they end, whatever becomes of who is told."""

from __future__ import annotations

import gc
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal
from storage_engine.retention.monitor import notifying
from storage_engine.retention.monitor.notifying import (
    Alarm,
    CommandMeans,
    Means,
    Subject,
    Teller,
    WebhookMeans,
    changes,
    means_of,
    tell,
)
from storage_engine.retention.store.managed_store import ManagedStore
from tests.services.webhook import Posted, webhook

BEHIND = "archive lag: expected at most 2.0 MiB, found {} MiB since 10:3{} UTC"


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    store = ManagedStore.local("orders", str(tmp_path / "store"), tmp_path)
    Journal(store.journal_url)
    return store


@pytest.fixture
def subject(store: ManagedStore) -> Subject:
    return Subject.of(store, "monitor", advice="storage-engine doctor /data", link="file:///report.html")


@pytest.fixture
def posted() -> object:
    with webhook() as found:
        yield found


def writes(file: Path) -> CommandMeans:
    """Return a command that adds what it is told to a file."""
    script = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"
    return CommandMeans((sys.executable, "-c", script, str(file)))


def told(file: Path) -> list[tuple[str, str]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [(it["state"], it["what"]) for it in map(json.loads, lines)]


def test_an_alarm_is_told_when_it_begins_and_when_it_ends(subject: Subject, tmp_path: Path) -> None:
    means = [writes(tmp_path / "told")]
    first, second = BEHIND.format("7.0", 1), BEHIND.format("9.5", 2)
    for now_ms, alarms in ((0, [first]), (600_000, [second]), (1_200_000, []), (1_800_000, [])):
        assert tell(subject, alarms, means, now_ms=now_ms) == ()
    begins, ends = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert begins == {
        "store": "orders",
        "state": "began",
        "what": first,
        "since": "1970-01-01T00:00:00+00:00",
        "advice": "storage-engine doctor /data",
        "link": "file:///report.html",
        "text": f"orders: {first} | since 1970-01-01T00:00:00+00:00 | storage-engine doctor /data | "
        "file:///report.html",
    }
    assert (ends["state"], ends["what"], ends["since"]) == ("ended", first, begins["since"])
    assert ends["text"].startswith("orders: ended: archive lag")


def test_names_with_digits_and_equal_alarms_stay_apart(subject: Subject, tmp_path: Path) -> None:
    means = [writes(tmp_path / "told")]
    alarms = ["/disk1 is full", "[10, 20) is lost", "[0, 10) is lost"]
    later = ["/disk2 is full", *alarms[:0:-1]]
    for standing in (alarms[:2], ["/disk1 is full", *later[1:]], later, later[:2]):
        tell(subject, standing, means)
    assert told(tmp_path / "told") == [
        ("began", alarms[0]),
        ("began", alarms[1]),
        ("began", alarms[2]),
        ("began", "/disk2 is full"),
        ("ended", alarms[0]),
        ("ended", alarms[1]),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("it ends 2026-11-29 10:31:07Z, unless renewed", "it ends 2026-11-30 00:00:00Z, unless renewed"),
        ("2 h 10 min are left", "1 h 59 min are left"),
    ],
)
def test_another_time_is_no_other_alarm(first: str, second: str) -> None:
    known, _ = changes([], [first], 0)
    assert changes(known, [second], 1) == ([], [])


def test_a_look_that_fails_ends_no_other_alarm(subject: Subject, tmp_path: Path) -> None:
    means = [writes(tmp_path / "told")]
    tell(subject, ["lost"], means)
    for _ in range(2):
        tell(subject, ["the journal is locked"], means, has_failed=True)
    assert told(tmp_path / "told") == [("began", "lost"), ("began", "the journal is locked")]
    tell(subject, ["lost"], means)
    assert told(tmp_path / "told")[2:] == [("ended", "the journal is locked")]


def test_two_sources_and_two_means_have_memories_of_their_own(
    store: ManagedStore, subject: Subject, tmp_path: Path
) -> None:
    one, other = writes(tmp_path / "one"), writes(tmp_path / "other")
    tell(subject, ["full"], [one])
    tell(Subject.of(store, "clean"), [], [one])
    assert told(tmp_path / "one") == [("began", "full")]
    tell(subject, ["full"], [one, other])
    assert (told(tmp_path / "one"), told(tmp_path / "other")) == ([("began", "full")],) * 2


def test_what_failed_is_a_notice_and_is_told_at_the_next_look(subject: Subject, posted: Posted) -> None:
    means = WebhookMeans(posted.url)
    for posted.status in (500, 302):
        (notice,) = tell(subject, ["full"], [means])
        assert notice == (
            "http://127.0.0.1 wasn't told of 1 alarm (expected a status of 200 to 299, found "
            f"{posted.status}); alarms that last until the next look are sent then"
        )
    posted.status = 200
    assert tell(subject, ["full"], [means]) == ()
    assert [body["what"] for body in posted.bodies] == ["full"]


def test_an_alarm_that_a_means_does_not_take_keeps_it_from_no_other(subject: Subject, tmp_path: Path) -> None:
    read = "import sys; text = sys.stdin.read(); 'odd' in text and sys.exit(1)"
    script = f"{read}; open(sys.argv[1], 'a').write(text)"
    means = [CommandMeans((sys.executable, "-c", script, str(tmp_path / "told")))]
    (notice,) = tell(subject, ["odd", "full"], means)
    assert "wasn't told of 1 alarm (expected exit code 0, found 1)" in notice
    assert told(tmp_path / "told") == [("began", "full")]


def test_one_that_hangs_is_left_in_time_and_the_others_are_told(subject: Subject, tmp_path: Path) -> None:
    hangs = CommandMeans((sys.executable, "-c", "import time; time.sleep(600)"))
    began = time.monotonic()
    (notice,) = tell(subject, ["full", "lost"], [hangs, writes(tmp_path / "told")], seconds=3)
    assert time.monotonic() - began < 60
    assert "wasn't told of 2 alarms" in notice
    assert "expected the program to end within 3 s" in notice
    assert told(tmp_path / "told") == [("began", "full"), ("began", "lost")]


def test_one_that_cannot_be_killed_is_left_in_time(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that sudo made another user's."""

    def tell_and_forget() -> tuple[str, ...]:
        notices = tell(subject, ["full"], [hangs], seconds=1)
        gc.collect()
        return notices

    pids: list[int] = []

    def not_permitted(pid: int, _signal: int) -> None:
        pids.append(pid)
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", not_permitted)
        hangs = CommandMeans((sys.executable, "-c", "import time; time.sleep(60)"))
        began = time.monotonic()
        with pytest.warns(ResourceWarning, match="still running"):
            (notice,) = tell_and_forget()
    os.killpg(pids[0], signal.SIGKILL)
    assert time.monotonic() - began < 40
    assert "expected the program to end within 1 s" in notice


@pytest.mark.parametrize(
    ("means", "why"),
    [
        (CommandMeans(("/no/such/program",)), "/no/such/program: No such file or directory"),
        (CommandMeans((sys.executable, "-c", "raise SystemExit(3)")), "expected exit code 0, found 3"),
        (WebhookMeans("http://127.0.0.1:1/secret"), "no answer (ConnectionError)"),
    ],
)
def test_one_that_fails_is_named_without_its_secrets(subject: Subject, means: Means, why: str) -> None:
    (notice,) = tell(subject, ["full"], [means])
    assert f"wasn't told of 1 alarm ({why}); " in notice
    assert "secret" not in notice


def test_what_a_store_says_never_meets_a_shell(subject: Subject, tmp_path: Path) -> None:
    alarm = f"topic $(touch {tmp_path}/x); `touch {tmp_path}/x` '\"\n is lost"
    means = means_of(f"sh -c 'cat >> {tmp_path}/told'")
    assert tell(subject, [alarm], [means]) == ()
    assert told(tmp_path / "told") == [("began", alarm)]
    assert not (tmp_path / "x").exists()


def test_what_was_told_is_remembered_where_the_journal_fails(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "_kept_here", {})
    means = [writes(tmp_path / "told")]
    journal = Path(subject.journal_url.removeprefix("sqlite:///"))
    journal.write_bytes(b"no database" * 1000)
    (unread, unkept) = tell(subject, ["full"], means)
    assert "before are unknown" in unread
    assert "can't be kept, so they are sent again" in unkept
    tell(subject, ["full"], means)
    assert told(tmp_path / "told") == [("began", "full")]


def test_one_killed_before_it_is_kept_is_told_again_and_never_not_at_all(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = [writes(tmp_path / "told")]

    def killed(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(notifying, "_keep_sent", killed)
        with pytest.raises(KeyboardInterrupt):
            tell(subject, ["full"], means)
    tell(subject, ["full"], means)
    tell(subject, ["full"], means)
    assert told(tmp_path / "told") == [("began", "full")] * 2


def test_a_journal_that_is_gone_is_not_made(subject: Subject, tmp_path: Path) -> None:
    journal = Path(subject.journal_url.removeprefix("sqlite:///"))
    journal.unlink()
    assert tell(subject, ["full"], [writes(tmp_path / "told")]) == ()
    assert not journal.exists()


def test_nothing_readable_of_a_url_is_in_the_journal(subject: Subject, posted: Posted) -> None:
    tell(subject, ["full"], [WebhookMeans(posted.url)])
    with sqlite3.connect(subject.journal_url.removeprefix("sqlite:///")) as journal:
        assert "secret" not in "\n".join(journal.iterdump())
    journal.close()


@pytest.mark.parametrize("text", ["", "  ", "'open", "https:///path", "http://[::1"])
def test_what_is_no_means_is_bad_input(text: str) -> None:
    with pytest.raises(BadInputError, match="expected a"):
        means_of(text)


def test_a_watch_tells_what_it_mends_and_what_stands(store: ManagedStore, posted: Posted) -> None:
    said: list[str] = []
    teller = Teller([WebhookMeans(posted.url)], said.append, lambda store: "look")
    teller.start()
    teller.add(store, ["isn't mounted"], ["mended: one"])
    teller.add(store, ["isn't mounted"], [])
    until_told(posted, 2)
    teller.add(store, [], [])
    teller.end(60)
    assert [(body["state"], body["what"]) for body in posted.bodies] == [
        ("began", "isn't mounted"),
        ("happened", "mended: one"),
        ("ended", "isn't mounted"),
    ]
    assert (said, posted.bodies[0]["advice"]) == ([], "look")


def test_a_watch_tells_what_happened_once_its_means_answers(
    store: ManagedStore, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It doesn't last, so that no later look would find it. Who was told is told no second time."""
    monkeypatch.setattr(notifying, "_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(notifying, "_LOOKS_SECONDS", 0.0)
    said: list[str] = []
    with webhook() as other:
        teller = Teller(
            [WebhookMeans(posted.url), WebhookMeans(other.url)], said.append, lambda store: "look"
        )
        posted.status = 500
        teller.start()
        teller.add(store, [], ["mended: one"])
        until_told(other, 1)
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.05)
        posted.status = 200
        until_told(posted, 1)
        teller.end(60)
    assert [(one["state"], one["what"]) for one in posted.bodies] == [("happened", "mended: one")]
    assert len(other.bodies) == 1


def test_a_watch_that_stands_by_leaves_telling_to_the_other(
    store: ManagedStore, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both remember by one journal: what one doesn't see hasn't ended."""
    monkeypatch.setattr(notifying, "_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(notifying, "_LOOKS_SECONDS", 0.0)
    first, second = (Teller([WebhookMeans(posted.url)], print, lambda store: "look") for _ in range(2))
    second.start()
    second.add(store, ["isn't mounted"], [])
    until_told(posted, 1)
    subject, ends_at = Subject.of(store, "watch"), time.monotonic() + 120
    while not notifying._read_sent(subject, WebhookMeans(posted.url))[0] and time.monotonic() < ends_at:
        time.sleep(0.01)  # it is recorded after it was sent
    first.start()
    first.add(store, ["isn't mounted"], [])
    second.add(store, None, [])
    time.sleep(0.5)
    first.add(store, [], [])
    until_told(posted, 2)
    time.sleep(0.5)
    for teller in (first, second):
        teller.end(60)
    assert [body["state"] for body in posted.bodies] == ["began", "ended"]


def test_a_watch_tells_on_where_nobody_reads_its_output(store: ManagedStore, posted: Posted) -> None:
    noted = threading.Event()

    def closed(_text: str) -> None:
        noted.set()
        raise BrokenPipeError

    posted.status = 500
    teller = Teller([WebhookMeans(posted.url)], closed, lambda store: "look")
    teller.start()
    teller.add(store, ["full"], [])
    assert noted.wait(60)
    posted.status = 200
    teller.end(60)
    assert [body["what"] for body in posted.bodies] == ["full"]


def until_told(posted: Posted, count: int) -> None:
    ends_at = time.monotonic() + 120
    while len(posted.bodies) < count and time.monotonic() < ends_at:
        time.sleep(0.01)


def test_an_alarm_that_an_older_release_told_in_other_words_still_stands() -> None:
    told = Alarm("setting-changed: expected a=false, found true: somebody changed it", 1)
    same = told.what.replace("somebody", "another program")
    assert changes([told], [same], 2) == ([], [])
    assert changes([told], [f"{same}; and more"], 2)[1] == [told]
