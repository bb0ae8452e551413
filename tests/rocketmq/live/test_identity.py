"""What a broker answers where its known message was: bytes, none, or that it doesn't answer."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.live.identity import ask_and_look, frame_sha256
from storage_engine.rocketmq.remoting.answers import RuntimeInfo


@dataclass
class Answering:
    """Stands for a broker's admin interface."""

    answer: bytes | BrokerRefusedError | None

    def view_message(self, physical_offset: int) -> bytes | None:
        if isinstance(self.answer, BrokerRefusedError):
            raise self.answer
        return self.answer


def ask(answer: bytes | BrokerRefusedError | None) -> str:
    admin: Any = Answering(answer)
    return frame_sha256(admin, 0)


def test_another_message_or_none_is_told_apart_from_no_answer() -> None:
    assert ask(b"frame") == sha256(b"frame").hexdigest()
    assert ask(None) == ""
    within = BrokerRefusedError(
        "refused", code=1, remark="java.lang.IllegalArgumentException, newLimit > capacity"
    )
    assert ask(within) == ""
    with pytest.raises(BrokerRefusedError):
        ask(BrokerRefusedError("refused", code=2, remark="[TIMEOUT_CLEAN_QUEUE]broker busy"))


@dataclass
class Writing:
    """Stands for a broker that writes a segment, and deletes those before it, between each two questions."""

    end: int = 0

    def runtime_info(self) -> RuntimeInfo:
        self.end += SEGMENT_BYTES
        return RuntimeInfo("V5_3_3", 1, self.end - 10, self.end, {}, None, None, 0, 0, {})


SEGMENT_BYTES = 1000


@pytest.mark.parametrize("segments", [0, 2, 30])
def test_a_broker_that_has_deleted_all_it_had_is_asked_again(segments: int) -> None:
    admin: Any = Writing()
    later = iter([segments])

    def look() -> tuple[int, list[MappedFile]]:
        admin.end += next(later, 0) * SEGMENT_BYTES
        return admin.end, [MappedFile(Path("/log"), admin.end - SEGMENT_BYTES, SEGMENT_BYTES)]

    info, end, (file,) = ask_and_look(admin, look)
    assert file.base_offset <= info.commitlog_max_offset <= end
