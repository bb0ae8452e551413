"""lake keep: how long a lake keeps each topic, and which topics are held."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from storage_engine.cli.lake.witnesses import WitnessedLake, witness_options
from storage_engine.cli.options.options import lake_option, second_lake_option
from storage_engine.cli.output.output import print_json, print_table, say, say_notes
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.cli.shell.values import reason_text
from storage_engine.commands import Text
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.keep.acts import (
    NO,
    SHOWN_CHARACTERS,
    YES,
    KeepDecision,
    RecordedAct,
    decide_archive,
    decide_hold,
    decide_lift,
    decide_rule,
)
from storage_engine.model.keep.expiry_rules import KeepForecast, TopicForecast
from storage_engine.model.keep.keep_rules import FOREVER, ArchiveRule, Scope, keep_days

_DEFAULT = "default"
"""Value of ``--keep`` that removes a rule."""

Decide = Callable[[tuple[RecordedAct, ...]], KeepDecision | None]


def _check_keep(_context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text not in (None, _DEFAULT):
        try:
            keep_days(text)
        except BadInputError as error:
            raise click.BadParameter(str(error), param=parameter) from error
    return text


@command("keep")
@lake_option(required=False)
@second_lake_option
@witness_options
@click.option(
    "--topic",
    metavar="PATTERN",
    help="Topics that a rule or a hold applies to: * stands for any text, ? for a character.",
)
@click.option(
    "--log",
    metavar="PATTERN",
    help=("Logs that a rule or a hold applies to: commitlog, or a partition such as orders-0."),
)
@click.option(
    "--store",
    "store_pattern",
    metavar="PATTERN",
    help=("Stores that a rule or a hold applies to, by name or id."),
)
@click.option(
    "--keep",
    "keep_text",
    metavar="TIME",
    callback=_check_keep,
    help=f"Record a rule: {FOREVER}, 'N days' or 'N years'; '{_DEFAULT}' removes the rule of these patterns.",
)
@click.option(
    "--hold",
    "hold_reason",
    metavar="REASON",
    callback=reason_text,
    help="Record a hold: until it is lifted, its messages stay in the lake, whatever the rules say.",
)
@click.option(
    "--archive",
    "archive_text",
    type=click.Choice([YES, NO]),
    help="Record whether messages enter the lake; 'no' takes effect 24 hours after the journal has the rule.",
)
@click.option(
    "--lift",
    "lift_id",
    metavar="ID",
    help=("End the hold with this id, or with an id that begins like this."),
)
@click.option("--dry-run", is_flag=True, help="Show the effect on the lake's contents, and record nothing.")
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="AMOUNT",
    help="Price of 10⁹ bytes in the lake for a month: also show the cost of each topic.",
)
@json_option
def keep(
    target: WitnessedLake,
    second_lake_dir: Path | None,
    topic: str | None,
    log: str | None,
    store_pattern: str | None,
    keep_text: str | None,
    hold_reason: str | None,
    archive_text: str | None,
    lift_id: str | None,
    dry_run: bool,
    price: float | None,
) -> int:
    """Show how long a lake keeps each topic, how much expires on which day, and the holds; or record a rule
    or a hold. This command removes nothing. Without rules, everything is archived and nothing expires.

    The most specific rule applies to a topic: first by topic, then by log, then by store. Of two equal ones,
    the one that keeps longer applies. A rule takes effect after 24 hours, a hold at once.
    """
    patterns = {"topic": topic, "log": log, "store": store_pattern}
    scope = Scope(**{name: pattern for name, pattern in patterns.items() if pattern is not None})
    decide = _decision(scope, keep_text, hold_reason, archive_text, lift_id)
    if decide is None and scope != Scope():
        raise click.UsageError("Expected --keep TIME, --hold REASON or --archive no|yes beside patterns.")
    second = target.second if second_lake_dir is None else LakeConfig.local(second_lake_dir)
    lakes = (target.config,) if second in (None, target.config) else (target.config, second)
    faults: list[str] = []
    notes: list[str] = []
    forecasts: list[KeepForecast] = []
    for config in lakes:
        try:
            with waiting("Looking at receipts"):
                archive = None if archive_text is None else scope
                forecast, lake_notes = _keep(
                    config, target.journal_url, decide, archive, price, dry_run=dry_run
                )
            forecasts.append(forecast)
            notes += lake_notes
        except StorageEngineError as error:
            if len(lakes) == 1:
                raise
            faults.append(Text(f"{config.location}: ", error))
    if not dry_run and (hold_reason is not None or archive_text == NO):
        notes += _notes(target.journal_url, lakes, "rule" if hold_reason is None else "hold")
    if wants_json():
        print_json("lake keep", {"dry_run": dry_run, "lakes": forecasts, "faults": faults, "notes": notes})
    else:
        for forecast in forecasts:
            print_forecast(forecast)
        if dry_run and decide is not None:
            say("Nothing was recorded.")
        say_notes(notes)
        for fault in faults:
            say("Not in this lake: ", fault, err=True)
    return 1 if faults else 0


def _decision(
    scope: Scope,
    keep_text: str | None,
    hold_reason: str | None,
    archive_text: str | None,
    lift_id: str | None,
) -> Decide | None:
    if sum(value is not None for value in (keep_text, hold_reason, archive_text, lift_id)) > 1:
        raise click.UsageError("Expected one of --keep, --hold, --archive and --lift.")
    if archive_text is not None:
        return partial(decide_archive, scope=scope, archives=archive_text == YES)
    if keep_text is not None:
        return partial(decide_rule, scope=scope, keep=None if keep_text == _DEFAULT else keep_text)
    if hold_reason is not None:
        return partial(decide_hold, scope=scope, reason=hold_reason)
    if lift_id is not None:
        if scope != Scope():
            raise click.UsageError("Expected only --lift ID: the hold itself has patterns.")
        return partial(decide_lift, hold_id=lift_id)
    return None


def _keep(
    config: LakeConfig,
    journal_url: str | None,
    decide: Decide | None,
    archive: Scope | None,
    price: float | None,
    *,
    dry_run: bool,
) -> tuple[KeepForecast, tuple[str, ...]]:
    """Record the decision. Return the lake's forecast after it, and notes.

    :param archive: patterns of the messages for which --archive decides; None if the decision is another one.
    """
    from storage_engine.lake.acts.act_files import read_acts, record_act
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.retention.housekeeping.keeping import (
        check_archive_rule,
        forecast_lake,
        record_archive_rules,
        record_newest_act,
    )
    from storage_engine.retention.housekeeping.kept_forecasts import keep_forecast

    lake = open_lake(config)
    if archive is not None:
        check_archive_rule(lake, archive)
    if decide is None or dry_run:
        acts = read_acts(lake)
        return forecast_lake(lake, journal_url, acts, price, None if decide is None else decide(acts)), ()
    acts = record_act(lake, decide)
    say(f"Recorded in {lake.location}, as act {acts[-1].sha256[:SHOWN_CHARACTERS]}.", err=True)
    notes = record_newest_act(lake, journal_url, acts)
    if archive is not None:
        notes += record_archive_rules(lake, journal_url, acts, archive)
    forecast = forecast_lake(lake, journal_url, acts, price)
    if journal_url is not None:
        keep_forecast(journal_url, forecast, clock_ms())
    return forecast, notes


def _notes(journal_url: str | None, lakes: tuple[LakeConfig, ...], kind: str) -> list[str]:
    """Return a note for each other lake of the journal's stores in which the act isn't recorded."""
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.catalog.identity import ancestors_of, lake_id_of
    from storage_engine.retention.housekeeping.keeping import other_lakes

    named: list[str | None] = []
    for config in lakes:
        # The failure to open this lake is among the faults already.
        with suppress(StorageEngineError):
            segments = open_lake(config).segments()
            named += (lake_id_of(segments), *ancestors_of(segments))
    return [
        f"store {store} also has segments in lake {head.lake_id or 'without a UUID'} at {head.location}, "
        f"where this {kind} is not recorded: name that lake as well"
        for store, head in other_lakes(journal_url, named)
    ]


def print_forecast(forecast: KeepForecast) -> None:
    """Print a lake's rules and holds, and the forecast for each topic."""
    if forecast.rules:
        print_table(
            "Rules",
            ("topic~", "log~", "store~", "keep"),
            ((rule.scope.topic, rule.scope.log, rule.scope.store, rule.keep) for rule in forecast.rules),
        )
    else:
        say(f"{forecast.location}: no rules, everything is kept for ever.")
    rules = [(rule.rule_id, rule, archive_text(rule)) for rule in forecast.archive_rules]
    holds = [(hold.hold_id, hold, hold.reason) for hold in forecast.holds]
    for title, heading, acts in (("Archive", "archive", rules), ("Holds", "reason", holds)):
        if acts:
            print_table(
                title,
                ("id", "since", "by", "of", heading),
                (
                    (_id_text(act_id), time_text(act.at_ms), act.person, act.scope.text, text)
                    for act_id, act, text in acts
                ),
            )
    if forecast.topics:
        priced = any(topic.month_cost is not None for topic in forecast.topics)
        print_table(
            "Topics",
            ("topic~", "store~", "size#", "in the lake#", *(("a month#",) if priced else ()), "keep", "goes"),
            (
                (
                    topic.topic or "(no topic)",
                    topic.store,
                    bytes_text(topic.size_bytes),
                    bytes_text(topic.lake_bytes),
                    *((f"{topic.month_cost:.4g}",) if topic.month_cost is not None else ()),
                    topic.keep,
                    _expiry_text(topic),
                )
                for topic in forecast.topics
            ),
        )
    if forecast.uncounted_bytes:
        say(f"Note: {bytes_text(forecast.uncounted_bytes)} have no topic, or one that no journal here knows.")


def archive_text(rule: ArchiveRule) -> str:
    return YES if rule.archives else NO


def _expiry_text(topic: TopicForecast) -> str:
    if topic.held_by:
        return f"held: {', '.join(map(_id_text, topic.held_by))}"
    if not topic.goes:
        return "never"
    first, last = topic.goes[0], topic.goes[-1]
    text = f"{bytes_text(first.size_bytes)} on {_day_text(first.day)}"
    if len(topic.goes) > 1:
        text += f", the rest on {count_text(len(topic.goes) - 1, 'day')} up to {_day_text(last.day)}"
    return text


def _id_text(act_id: str) -> str:
    return act_id[:SHOWN_CHARACTERS] or "new"


def _day_text(day: int) -> str:
    return time_text(day * DAY_MS)[:10]
