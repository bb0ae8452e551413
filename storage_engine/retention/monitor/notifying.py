"""Notification of people: each alarm is sent once when it begins, and once when it has ended.

The journal keeps which alarms each receiver was sent. An alarm that could not be sent is sent again at the
next look. If a receiver fails or hangs, a notice says so, and nothing else fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import count_text, reason_text, unexpected_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.retention.proof.verification_memory import KeptRows
from storage_engine.retention.store.managed_store import ManagedStore

MOST_SECONDS: Final = 30.0
"""Seconds that one receiver may take for all alarms of a look."""
_KILLED_SECONDS: Final = 1.0
_MOST_ALARMS: Final = 20
"""Greatest number of alarms that are sent in one look. The others wait for the next look."""
_VERSION: Final = 1
_SENT = KeptRows("storage_engine_told_alarms", "told")
_NUMBER = re.compile(r"(?<![^\s\[(])[\d-]*\d\S*(?: [\d-]*\d\S*)*(?: \w+)?")
"""A number with its unit, or a time: both change between looks. Digits inside a name don't match."""


class AlarmState(StrEnum):
    """The state of an alarm."""

    BEGAN = "began"
    HAPPENED = "happened"
    """An event that doesn't last, such as a mend by a watch."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A state that a person should know of at once, until it ends.

    :param since_ms: when a look first found it.
    """

    what: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Notification:
    """One alarm as it is sent.

    :param link: address with more information, or "" if there is none.
    """

    store: str
    state: AlarmState
    alarm: Alarm
    advice: str
    link: str

    def to_dict(self) -> dict[str, str]:
        """Return plain values for JSON and templates. The value ``text`` has all of them, for chats."""
        since = datetime.fromtimestamp(self.alarm.since_ms / 1000, UTC).isoformat(timespec="seconds")
        when = f"{self.state.value}, since {since}" if self.state is AlarmState.ENDED else f"since {since}"
        ended = "ended: " if self.state is AlarmState.ENDED else ""
        text = " | ".join(
            part for part in (f"{self.store}: {ended}{self.alarm.what}", when, self.advice, self.link) if part
        )
        values = {"store": self.store, "state": self.state.value, "what": self.alarm.what, "since": since}
        return {**values, "advice": self.advice, "link": self.link, "text": text}


class Means(Protocol):
    """A receiver of alarms.

    :param key: distinguishes this receiver from others, in all processes.
    :param name: its name in notices, without secrets.
    """

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    def send(self, notification: Notification, seconds: float) -> None:
        """Send a notification within about so many seconds, or raise any error."""


@dataclass(frozen=True, slots=True)
class CommandMeans:
    """A program that reads one notification as JSON from its standard input. It runs without a shell."""

    words: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"command {shlex.join(self.words)}"

    @property
    def name(self) -> str:
        return self.words[0]

    def send(self, notification: Notification, seconds: float) -> None:
        """Run the command, with a notification as JSON on its standard input, within so many seconds.

        :raises StorageEngineError: its exit code wasn't 0, or it didn't end in time and was killed.
        :raises OSError: the command can't be started.
        """
        process = subprocess.Popen(
            self.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(notification.to_dict()).encode() + b"\n", timeout=seconds)
        except subprocess.TimeoutExpired:
            # Its child processes are killed, too. A process of another user, as by sudo, can't be killed.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_SECONDS)
            raise StorageEngineError(
                f"expected the program to end within {seconds:.0f} s, found it still running"
            ) from None
        finally:
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        if process.returncode:
            raise StorageEngineError(f"expected exit code 0, found {process.returncode}")


@dataclass(frozen=True, slots=True)
class WebhookMeans:
    """A URL that takes one notification as JSON, by POST."""

    url: str

    @property
    def key(self) -> str:
        return f"webhook {self.url}"

    @property
    def name(self) -> str:
        # The rest of a chat's URL is secret: it permits writing there.
        return f"{urlsplit(self.url).scheme}://{urlsplit(self.url).hostname}"

    def send(self, notification: Notification, seconds: float) -> None:
        """Post a notification as JSON to the URL, within so many seconds.

        :raises StorageEngineError: the URL answered with a failure, or not in time.
        """
        import requests

        def post() -> int:
            with requests.post(
                self.url, json=notification.to_dict(), timeout=seconds, stream=True, allow_redirects=False
            ) as answer:
                return answer.status_code

        try:
            status = within(seconds, post)
        except requests.RequestException as error:
            # The error's text has the secret URL.
            raise StorageEngineError(f"no answer ({type(error).__name__})") from None
        if not 200 <= status < 300:
            raise StorageEngineError(f"expected a status of 200 to 299, found {status}")


def means_of(text: str) -> Means:
    """Return the receiver that a word on a command line names: a URL or a command.

    :raises BadInputError: the word is neither a URL nor a command.
    """
    if text.startswith(("http://", "https://")):
        try:
            host = urlsplit(text).hostname
        except ValueError:
            # The error's text has the secret URL.
            host = None
        if not host:
            raise BadInputError("expected a URL with a host, found none")
        return WebhookMeans(text)
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInputError(f"expected a command, found {text!r} ({error})") from None
    if not words:
        raise BadInputError("expected a command or a URL, found nothing")
    return CommandMeans(words)


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """Call a function that may hang, and return its result.

    :raises StorageEngineError: the function takes longer. Its thread continues until the process ends.
    """
    future = Future[Any]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="storage-engine-notify", daemon=True).start()
    if not wait([future], seconds).done:
        raise StorageEngineError(
            f"expected the notification to be sent within {seconds:.0f} s, found it unfinished"
        )
    return future.result()


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of alarms: a store, seen by one observer.

    :param place: distinguishes the store from others in its journal.
    :param journal_url: URL of the journal that keeps the sent alarms, or "" if unknown.
    :param source: name of the observer. An observer ends only alarms that it began itself.
    """

    store: str
    place: str
    journal_url: str
    source: str
    advice: str = ""
    link: str = ""

    @classmethod
    def of(cls, store: ManagedStore, source: str, *, advice: str = "", link: str = "") -> Subject:
        """Return the subject of a store's alarms from one observer."""
        return cls(
            store.name, f"{store.host or ''} {store.real_root}", store.journal_url, source, advice, link
        )

    def key(self, means: Means) -> str:
        """Return the journal's key of a receiver: a hash, which hides the receiver's URL or command."""
        parts = json.dumps([self.store, self.place, self.source, means.key])
        return hashlib.sha256(parts.encode()).hexdigest()[:36]


def tell(
    subject: Subject,
    alarms: Sequence[str],
    all_means: Sequence[Means],
    *,
    happened: Sequence[str] = (),
    has_failed: bool = False,
    now_ms: int | None = None,
    seconds: float = MOST_SECONDS,
) -> tuple[str, ...]:
    """Send each receiver the alarms that began, and those that ended, since the last call. Never raises.

    :param alarms: all present alarms.
    :param happened: events that don't last. Each is sent once; if that fails, the next call retries.
    :param has_failed: the look itself failed with these alarms, so it is unknown whether others have ended.
    :return: alarms that could not be sent, as notices.
    """
    notices: list[str] = []
    now_ms = clock_ms() if now_ms is None else now_ms
    for means in all_means:
        try:
            sent, why_unknown = _read_sent(subject, means)
            if why_unknown:
                notices.append(f"the alarms sent to {means.name} before are unknown: {why_unknown}")
            began, ended = changes(sent, alarms, now_ms)
            todo = [
                *((AlarmState.BEGAN, alarm) for alarm in began),
                *((AlarmState.HAPPENED, alarm) for alarm in _untold_here.pop(subject.key(means), ())),
                *((AlarmState.HAPPENED, Alarm(text, now_ms)) for text in happened),
                *((AlarmState.ENDED, alarm) for alarm in ended if not has_failed),
            ]
            notices += _send_all(subject, means, sent, todo, seconds)
        except Exception as error:
            notices.append(f"{means.name} wasn't told: {_error_text(error)}")
    return tuple(notices)


def _error_text(error: Exception) -> str:
    is_expected = isinstance(error, (StorageEngineError, OSError))
    return reason_text(error) if is_expected else unexpected_text(error)


def _send_all(
    subject: Subject,
    means: Means,
    sent: Sequence[Alarm],
    todo: Sequence[tuple[AlarmState, Alarm]],
    seconds: float,
) -> list[str]:
    notices: list[str] = []
    standing, unsent, reason = {id(alarm): alarm for alarm in sent}, len(todo), ""
    waiting = [alarm for state, alarm in todo if state is AlarmState.HAPPENED]
    ends_at = time.monotonic() + seconds
    for state, alarm in todo[:_MOST_ALARMS]:
        try:
            if (remaining := ends_at - time.monotonic()) <= 0:
                raise StorageEngineError(
                    f"expected to send all notifications within {seconds:.0f} s, found that it takes longer"
                )
            means.send(Notification(subject.store, state, alarm, subject.advice, subject.link), remaining)
        except Exception as error:
            # A receiver that refuses one alarm still gets the others.
            reason = reason or _error_text(error)
            continue
        unsent -= 1
        if state is AlarmState.ENDED:
            del standing[id(alarm)]
        elif state is AlarmState.BEGAN:
            standing[id(alarm)] = alarm
        else:
            waiting.remove(alarm)
    if waiting:
        _untold_here[subject.key(means)] = tuple(waiting[-_MOST_ALARMS:])
    if reason:
        untold = f"{means.name} wasn't told of {count_text(unsent, 'alarm')}"
        notices.append(f"{untold} ({reason}); alarms that last until the next look are sent then")
    if len(todo) > unsent and (reason := _keep_sent(subject, means, tuple(standing.values()))):
        notices.append(
            f"the record of alarms sent to {means.name} can't be kept, so they are sent again: {reason}"
        )
    return notices


def changes(sent: Sequence[Alarm], alarms: Sequence[str], now_ms: int) -> tuple[list[Alarm], list[Alarm]]:
    """Return the alarms that began, and those that ended. If only numbers changed, it is the same alarm."""
    before: dict[str, list[Alarm]] = defaultdict(list)
    new = dict.fromkeys(alarms)
    for alarm in sent:
        # Equal texts go first, so that of two alarms that differ only in numbers the new one began.
        if alarm.what in new:
            del new[alarm.what]
        else:
            before[_mask_numbers(alarm.what)].append(alarm)
    began = []
    for text in new:
        if same := before[_mask_numbers(text)]:
            same.pop(0)
        else:
            began.append(Alarm(text, now_ms))
    return began, [alarm for group in before.values() for alarm in group]


def _mask_numbers(text: str) -> str:
    # Earlier releases wrote "somebody": an upgrade must not end an alarm and begin it again.
    return _NUMBER.sub("#", text.replace("somebody", "another program"))


_kept_here: dict[str, tuple[Alarm, ...]] = {}
"""Alarms that this process sent while the journal could not keep them, by :meth:`Subject.key`."""
_untold_here: dict[str, tuple[Alarm, ...]] = {}
"""Events that this process could not send, by :meth:`Subject.key`."""


def _read_sent(subject: Subject, means: Means) -> tuple[tuple[Alarm, ...], str]:
    """Return the alarms that a receiver was sent and that haven't ended, and why they are unknown, or ""."""
    key, url = subject.key(means), subject.journal_url
    if key in _kept_here or not url or missing_sqlite_file(url):
        return _kept_here.get(key, ()), ""
    try:
        stored = _SENT.read(url, key)
        if stored is None or stored[0] != _VERSION:
            return (), ""
        plain = json.loads(zlib.decompress(stored[1]))
        return tuple(from_jsonable(Alarm, row, "told") for row in plain), ""
    except (StorageEngineError, OSError, zlib.error, *MALFORMED) as error:
        return (), reason_text(error)


def _keep_sent(subject: Subject, means: Means, alarms: Sequence[Alarm]) -> str:
    """Keep the alarms that a receiver was sent and that haven't ended. Return why that failed, or ""."""
    key, url = subject.key(means), subject.journal_url
    _kept_here[key] = tuple(alarms)
    if not url or missing_sqlite_file(url):
        return ""
    try:
        _SENT.write(url, key, _VERSION, json.dumps([to_jsonable(alarm) for alarm in alarms]), reserve=False)
    except (StorageEngineError, OSError) as error:
        return reason_text(error)
    del _kept_here[key]
    return ""


_LOOKS_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 60.0


class Teller(threading.Thread):
    """Sends the alarms of watches in a thread of its own, so that a slow receiver delays no mend.

    :param say: called with the notices of a sending, unless the last sending had the same notices.
    :param advice: returns the remedy for a store.
    """

    def __init__(
        self, means: Sequence[Means], say: Callable[[str], None], advice: Callable[[ManagedStore], str]
    ) -> None:
        super().__init__(name="storage-engine-watch-notifies", daemon=True)
        self._means, self._say, self._advice = means, say, advice
        self._present: dict[str, tuple[Subject, tuple[str, ...], tuple[str, ...]]] = {}
        self._changing = threading.Lock()
        self._changed = threading.Event()
        self._ends = False
        self._reported: tuple[str, ...] = ()

    def add(self, store: ManagedStore, alarms: Sequence[str] | None, happened: Sequence[str]) -> None:
        """Add a store's present alarms and events, which the thread sends soon. Never waits.

        :param alarms: None if another process sends the present alarms.
        """
        with self._changing:
            if alarms is None:
                self._present.pop(store.root, None)
                return
            before = self._present.get(store.root)
            subject = before[0] if before else Subject.of(store, "watch", advice=self._advice(store))
            waiting = (*(before[2] if before else ()), *happened)[-_MOST_ALARMS:]
            self._present[store.root] = (subject, tuple(alarms), waiting)
            if happened or before is None or before[1] != tuple(alarms):
                self._changed.set()

    def end(self, seconds: float) -> None:
        """End the thread after it has sent everything, or leave it after so many seconds."""
        self._ends = True
        self._changed.set()
        self.join(seconds)

    def run(self) -> None:
        ends = False
        while not ends:
            self._changed.wait(_AGAIN_SECONDS)
            self._changed.clear()
            ends = self._ends
            if not ends:
                # A state that ends within this time sends no alarm.
                time.sleep(_LOOKS_SECONDS)
            with self._changing:
                present = list(self._present.items())
                self._present = {root: (row[0], row[1], ()) for root, row in present}
            results = [
                tell(subject, alarms, self._means, happened=happened)
                for _, (subject, alarms, happened) in present
            ]
            notices = tuple(dict.fromkeys(notice for group in results for notice in group))
            if notices != self._reported:
                self._reported = notices
                for notice in notices:
                    # If the pipe is closed, later alarms have to be sent all the same.
                    with suppress(Exception):
                        self._say(notice)
