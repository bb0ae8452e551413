"""What a broker answers where its known message was: bytes, none, or that it doesn't answer."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.rocketmq.live.identity import frame_sha256


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
