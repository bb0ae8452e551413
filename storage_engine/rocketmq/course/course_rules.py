"""RocketMQ's rules without a store, for a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from storage_engine.exceptions import BadInputError
from storage_engine.model.course.course import (
    DAY_MS,
    LONGEST_HORIZON_MS,
    MOST_SECONDS,
    Advice,
    BrokerRules,
    Course,
    CourseStart,
    RuleLevels,
    RuleSetting,
)
from storage_engine.model.course.daily_hours import hour_spans_ms
from storage_engine.rocketmq.course.course import course
from storage_engine.rocketmq.course.course_advice import advice
from storage_engine.rocketmq.course.course_settings import SETTINGS, config_of, unsupported, values_of
from storage_engine.rocketmq.rules.rules import NOTICE_LEVEL_PERCENT, delete_hours
from storage_engine.rocketmq.rules.window import time_zone


class RocketMQRules(BrokerRules):
    """Those of CleanCommitLogService."""

    @property
    def settings(self) -> tuple[RuleSetting, ...]:
        return SETTINGS

    def values(self, config: Mapping[str, str]) -> dict[str, str]:
        return values_of(config)

    def unsupported(self, config: Mapping[str, str]) -> str:
        return unsupported(config)

    def levels(self, values: Mapping[str, str]) -> RuleLevels:
        config = config_of(values)
        forces = config.disk_space_clean_forcibly_percent if config.clean_file_forcibly_enable else None
        return RuleLevels(
            notice_percent=NOTICE_LEVEL_PERCENT,
            cleans_percent=config.disk_max_used_space_ratio_percent,
            forces_percent=forces,
            refuses_percent=config.disk_space_warning_level_percent,
            accepts_percent=min(
                config.disk_space_clean_forcibly_percent, config.disk_space_warning_level_percent
            ),
        )

    def hours(self, values: Mapping[str, str]) -> tuple[int, ...]:
        return delete_hours(config_of(values))

    def windows(
        self, values: Mapping[str, str], time_zone: str, start_ms: int, end_ms: int
    ) -> tuple[tuple[int, int], ...]:
        _check_horizon(end_ms - start_ms)
        return hour_spans_ms(start_ms, end_ms, self.hours(values), _zone(time_zone))

    def course(
        self,
        values: Mapping[str, str],
        start: CourseStart,
        horizon_ms: int,
        *,
        limit_seconds: float = MOST_SECONDS,
    ) -> Course:
        _check_horizon(horizon_ms)
        return course(config_of(values), start, horizon_ms, _zone(start.time_zone), limit_seconds)

    def advice(
        self, values: Mapping[str, str], start: CourseStart, *, wished_hours: int | None = None
    ) -> tuple[Advice, ...]:
        return advice(config_of(values), start, wished_hours)


def _zone(name: str) -> ZoneInfo:
    return time_zone(name)


def _check_horizon(horizon_ms: int) -> None:
    if not 0 < horizon_ms <= LONGEST_HORIZON_MS:
        raise BadInputError(
            f"simulation: expected more than 0 and at most {LONGEST_HORIZON_MS // DAY_MS} days, found "
            f"{horizon_ms / DAY_MS:g}."
        )


RULES = RocketMQRules()
