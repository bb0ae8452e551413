"""What a release says of approved segments that stay."""

from __future__ import annotations

from storage_engine.model.plan import Reason
from storage_engine.retention.release.releasing import Kept, ReleaseResult


def result(*kept: Kept) -> ReleaseResult:
    return ReleaseResult("r", "d", (), (), kept, 0, None, ())


def test_what_stays_is_counted_by_its_reason_and_the_first_one_is_told_whole() -> None:
    compacted = Kept("a-0", 0, Reason.COMPACTED, "cleanup.policy contains compact")
    stays = (
        compacted,
        Kept("a-0", 10, Reason.COMPACTED, "likewise"),
        Kept("b-0", 0, Reason.REFUSED, "other"),
    )
    assert result(*stays).kept_text == (
        "3 planned segments stay: 2 compacted, 1 refused; cleanup.policy contains compact"
    )
    assert result().kept_text == ""
