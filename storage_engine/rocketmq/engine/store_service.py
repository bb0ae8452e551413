"""A store of the engine as a process of its own: it writes, serves who asks, and deletes what is proven.

Runs that delete go on beside the passes of a cleanup: a run takes as long as its archive does, and meanwhile
the passes say what a full disk means for writing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from storage_engine.exceptions import StoreBusyError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan.plan import PlanRequest, Release
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.cleanup_loop import cleaning
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.recovering import check_nothing_cut
from storage_engine.rocketmq.engine.serving import serving
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.rules.window import time_zone

_log = logging.getLogger(__name__)

STOP_SECONDS = 20.0
"""For how long who stops waits for a step. What it leaves then is as after a kill: the next run goes on."""


class ReleaseBeside:
    """Has one run at a time made, in a thread of its own."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._thread: threading.Thread | None = None

    def __call__(self, request: PlanRequest) -> None:
        """Begin a run, unless one is going on."""
        if self._thread is not None and self._thread.is_alive():
            return
        # An end of this process may not wait for hours.
        self._thread = threading.Thread(target=self._run, args=(request,), name="release", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let a run end at its next step, and wait for that a little."""
        self._release.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self, request: PlanRequest) -> None:
        try:
            self._release(request)
        except Exception:
            # A later pass asks again; messages are taken meanwhile.
            _log.warning("A run that deletes what is proven failed.", exc_info=True)


@contextmanager
def releasing_beside(release: Release) -> Iterator[ReleaseBeside]:
    """Stop the runs when the block ends."""
    beside = ReleaseBeside(release)
    try:
        yield beside
    finally:
        beside.stop()


_PAUSE_SECONDS = 1.0


def serve_store(
    settings: StoreSettings,
    topic: str | None,
    lines: Iterable[bytes],
    ends: threading.Event,
    release: Release | None,
) -> None:
    """Hold a store until it is told to end, or until its input has ended.

    The passes of the cleanup set what a full disk means for writing, and delete nothing. Who asks this
    process to delete has proven what goes: a run from elsewhere, or ``release``.

    :param topic: each line becomes a message of it; None: nothing is read.
    :param lines: without their ends; they end when ``ends`` is set.
    :param release: asked where the rules let files go; None: nobody is.
    :raises StoreBusyError: somebody else has the store, or it takes no message any more.
    :raises CorruptFrameError: its recovery would cut off whole messages.
    """
    config = load_broker_config(settings.broker_conf, settings.overrides, root=settings.root)
    with (
        open_store(config, check=check_nothing_cut) as store,
        serving(store),
        nullcontext(_keep_all) if release is None else releasing_beside(release) as runs,
        cleaning(store, config, time_zone(settings.time_zone), release=runs),
    ):
        if topic is not None:
            for line in lines:
                _put(store, NewMessage(topic, line), ends)
        else:
            ends.wait()
        if store.failure:
            raise StoreBusyError(f"{store.layout.root}: expected to stop it cleanly, found {store.failure}.")


def _keep_all(request: PlanRequest) -> None:
    """Delete nothing."""


def _put(store: MessageStore, message: NewMessage, ends: threading.Event) -> None:
    while (status := store.put(message).status) is not PutStatus.PUT_OK:
        if status is not PutStatus.SERVICE_NOT_AVAILABLE or store.failure or not store.disk_full:
            raise StoreBusyError(
                f"{store.layout.root}: expected it to take a message of {len(message.body)} bytes, found "
                f"{store.failure or status}. The messages before it are stored."
            )
        # A cleanup may free some space.
        if ends.is_set():
            return
        time.sleep(_PAUSE_SECONDS)
