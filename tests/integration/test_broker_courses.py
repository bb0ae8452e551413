"""The broker's own cleaning classes, with clock and disk driven, take the kept and the simulated courses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.courses import Scenario, courses_of, kept_courses, scenarios, simulated
from tests.integration.java_courses import java_courses
from tests.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_200)]

_ROUNDS = rounds("STORAGE_ENGINE_COURSE_ROUNDS", 10, 30)
_MIB = 1 << 20
_ZONES = {"Asia/Shanghai": 0, "Europe/Berlin": 1_792_800_000_000, "Australia/Lord_Howe": 1_791_000_000_000}
"""With a day before summer time begins or ends there; 0: it never does."""


def test_the_kept_courses_are_the_broker_s(tmp_path: Path) -> None:
    made = courses_of(java_courses(list(scenarios().values()), tmp_path))

    assert made == kept_courses()


def test_stores_and_settings_by_chance_take_the_simulated_course(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    given = {f"{seed}-{number}": _by_chance(chance) for number in range(_ROUNDS)}
    paths = []
    for name, values in given.items():
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(values))
    made = courses_of(java_courses(paths, tmp_path / "stores"))

    for name, values in given.items():
        _, course = simulated(Scenario(name, values))
        assert course.deletions == made[name].deletions, values
        assert course.refused == made[name].refused, values
    # Most of them delete, in many passes, and some refuse writes.
    assert sum(len(course.deletions) for course in made.values()) > 20 * _ROUNDS
    assert sum(len(course.refused) for course in made.values()) > _ROUNDS // 10


def _by_chance(chance: random.Random) -> dict[str, Any]:
    """A store of at most a few thousand segments over its days, at any level, with any settings."""
    days = chance.randint(1, 4)
    segment_bytes = chance.choice([1, 16, 64, 1024]) * _MIB + chance.randrange(3)
    disk_bytes = segment_bytes * chance.randint(20, 800) + chance.randrange(segment_bytes)
    other_bytes = int(disk_bytes * chance.choice([0.0, 0.1, 0.3, chance.random()]))
    count = int((disk_bytes - other_bytes) // segment_bytes * chance.random()) + 1
    zone = chance.choice(list(_ZONES))
    start_ms = _ZONES[zone] or chance.randrange(1_790_000_000_000, 1_800_000_000_000)
    settings = {
        "fileReservedTime": chance.choice([0, 1, 4, 24, 48]),
        "deleteWhen": chance.choice(["04", "02;14", "2;3", "99", ";".join(map(str, range(24))), "00;23"]),
        "diskMaxUsedSpaceRatio": chance.choice([5, 40, 60, 75, 88, 95, 99]),
        "diskSpaceCleanForciblyRatio": chance.choice([20, 50, 80, 85, 90]),
        "diskSpaceWarningLevelRatio": chance.choice([20, 50, 85, 90, 99]),
        "cleanFileForciblyEnable": chance.choice(["true", "true", "false"]),
        "deleteFileBatchMax": chance.choice([0, 1, 3, 10, 10]),
        "deleteCommitLogFilesInterval": chance.choice([0, 100, 100, 3000]),
        "cleanResourceInterval": chance.choice([10000, 10000, 5000, 60000]),
    }
    return {
        "time_zone": zone,
        "start_ms": start_ms + chance.randrange(86_400_000),
        "days": days,
        "disk_bytes": disk_bytes,
        "other_bytes": other_bytes,
        "segment_bytes": segment_bytes,
        "segments": {
            "count": count,
            "every_ms": chance.randrange(1_000, 1_800_000),
            "last_after_ms": chance.choice([0, 0, 0, -3_600_000, 7_200_000]),
        },
        "bytes_per_day": chance.randrange(1, segment_bytes * 1_500),
        "profile": chance.choice([[1] * 24, [chance.randrange(9) for _ in range(23)] + [1], [0] * 23 + [1]]),
        "growth_per_day": chance.choice([0.0, 0.0, 0.2, -0.1]),
        "settings": {name: str(value) for name, value in settings.items()},
    }
