"""One message by which a broker's store is known again: the first one of the newest sealed segment.

Sealed, since what a crash may cut off and write again is only what was active.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.rocketmq.live.state import Found, HoldState
from storage_engine.rocketmq.remoting.admin import BrokerAdmin

_WITHIN_A_FRAME = "IllegalArgumentException"
"""What becomes of a length that is none (DefaultMappedFile#selectMappedBuffer)."""


def frame_sha256(admin: BrokerAdmin, offset: int) -> str:
    """Of the frame that the broker has at ``offset``; "" where no message begins there.

    :raises BrokerError: the broker can't be asked, or doesn't answer that.
    """
    try:
        frame = admin.view_message(offset)
    except BrokerRefusedError as error:
        if _WITHIN_A_FRAME not in error.remark:
            raise
        frame = None
    return sha256(frame).hexdigest() if frame else ""


def ask_known_frame(admin: BrokerAdmin, state: HoldState, found: Found) -> Found:
    """Let ``found`` have what the broker has now where the known message was."""
    if not found.min_offset <= state.frame_offset < found.max_offset:
        return found
    return replace(found, frame_sha256=frame_sha256(admin, state.frame_offset))


def know_newest_frame(admin: BrokerAdmin, state: HoldState, found: Found) -> HoldState:
    """Remember the newest sealed segment's first message, unless that is what is remembered already."""
    sealed = [file.base_offset for file in found.files if file.end_offset <= found.max_offset]
    newest = max((base for base in sealed if base >= found.min_offset), default=-1)
    if newest in (-1, state.frame_offset):
        return state
    digest = frame_sha256(admin, newest)
    return replace(state, frame_offset=newest, frame_sha256=digest) if digest else state
