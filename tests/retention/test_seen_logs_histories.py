"""What is missing of each log that had a name stays told until it is rightly gone, whoever has the name."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.store import Absence, LogIdentity
from storage_engine.retention.ranges.seen_logs import SeenLog, absent_logs, merge_logs, missing_ranges

RIGHT, WRONG = Absence(True, "its topic was deleted"), Absence(False, "it should be here")


@dataclass
class Log:
    """One of the logs that have had a name.

    :param seen: its offsets at the last look at which it was here.
    """

    log_id: str
    start: int = 0
    end: int = 0
    state: str = "here"
    seen: tuple[int, int] = (0, 0)


@dataclass
class World:
    """A name and all logs that have had it, the newest last; and what the looks at it remember."""

    logs: list[Log] = field(default_factory=list)
    known: tuple[SeenLog, ...] = ()
    looks: int = 0

    def here(self) -> Log | None:
        return next((one for one in self.logs if one.state == "here"), None)

    def act(self, what: str, number: int) -> None:
        log = self.here()
        if what == "make" and log is None:
            self.logs.append(Log(f"c/{len(self.logs)}/0", end=number))
        elif what == "tell":
            for one in self.logs[:number]:
                one.state = "right" if one.state == "lost" else one.state
        elif log is not None and what == "grow":
            log.end += number
        elif log is not None and what == "expire":
            log.start = min(log.end, log.start + number)
        elif log is not None and what in ("lost", "right"):
            log.state = what

    def look(self) -> None:
        self.looks += 1
        log = self.here()
        here = []
        if log is not None:
            log.seen = (log.start, log.end)
            identity = LogIdentity(log.log_id, self.looks)
            here = [SeenLog("a-0", 1, log.start, log.end, log.end, self.looks, identity)]
        states = {one.log_id: one.state for one in self.logs}

        def why(known: tuple[SeenLog, ...]) -> dict[SeenLog, Absence]:
            absent = absent_logs(known, here)
            return {one: RIGHT if states[one.identity.log_id] == "right" else WRONG for one in absent}

        self.known = merge_logs(self.known, here, why(self.known))
        missing = list(missing_ranges(self.known, here, why(self.known)))
        assert {one.log_id: (one.start_offset, one.end_offset) for one in missing} == {
            one.log_id: one.seen for one in self.logs if one.state == "lost" and one.seen[0] < one.seen[1]
        }
        # By the name alone one of them is told at most: the one that has it, or had it last.
        plain = [one.log_id for one in missing if not one.is_other]
        assert len(plain) <= 1
        assert log is None or not plain


acts = st.tuples(
    st.sampled_from(["make", "grow", "expire", "lost", "right", "tell", "nothing"]), st.integers(1, 9)
)


@given(st.lists(acts, max_size=30))
def test_each_log_that_had_a_name_stays_told(history: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in history:
        world.act(what, number)
        world.look()
