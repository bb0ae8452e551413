"""lake keep: rules and holds as they are shown, recorded and refused."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from storage_engine.brokers import find_broker
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.journal.journal import Journal
from tests.kafka.stopped_nodes import make_node
from tests.kafka_fixture import unpack as unpack_node
from tests.services.command_line import run_command

pytestmark = pytest.mark.slow


@pytest.fixture
def archived(cli, store_copy, lake):
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake, "--manual").exit_code in (0, 2)
    assert cli("archive", store, "--lake", lake).exit_code == 0
    return lake


@pytest.fixture
def node(tmp_path):
    """A small node of Kafka that is stopped, and a lake of its kind."""
    lake = tmp_path / "kafka-lake"
    assert run_command("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    return make_node(tmp_path / "node").properties, lake


def keep(cli, lake, *words):
    """What the lake keeps after a command, by its JSON."""
    done = cli("lake", "keep", "--lake", lake, "--json", *words)
    assert done.exit_code == 0, done
    (found,) = done.json["lakes"]
    return found


def test_what_is_counted_is_what_was_archived_and_no_data_file_is_read(cli, archived) -> None:
    with sqlite3.connect(archived / "journal.db") as connection:
        query = "SELECT topic, sum(bytes) FROM storage_engine_topic_days GROUP BY topic"
        counted = dict(connection.execute(query))
    connection.close()
    for path in archived.rglob("messages/data/**/*.parquet"):
        path.unlink()
    found = keep(cli, archived, "--price", "100")
    assert counted
    assert {it["topic"]: it["size_bytes"] for it in found["topics"] if it["topic"] in counted} == counted
    assert all(topic["keep"] == "forever" and topic["goes"] == [] for topic in found["topics"])
    assert all(topic["month_cost"] == topic["lake_bytes"] / 1e9 * 100 for topic in found["topics"])
    assert found["uncounted_bytes"] >= 0


def test_a_dry_run_shows_what_a_rule_would_do_and_records_nothing(cli, archived) -> None:
    dry = keep(cli, archived, "--keep", "0 days", "--dry-run")
    assert any(topic["goes"] for topic in dry["topics"])
    assert keep(cli, archived)["rules"] == []
    assert not list(archived.rglob("_storage-engine/acts/*"))
    done = keep(cli, archived, "--keep", "0 days")
    assert [topic["goes"] for topic in done["topics"]] == [topic["goes"] for topic in dry["topics"]]
    for topic in done["topics"]:
        no_wildcard = find_broker("rocketmq").topics.is_system(topic["topic"])
        assert topic["keep"] == ("forever" if no_wildcard else "0 days")
    assert keep(cli, archived, "--keep", "default")["rules"] == []


def test_a_hold_is_shown_until_it_is_lifted_and_recorded_once(cli, archived) -> None:
    keep(cli, archived, "--keep", "0 days")
    for _ in range(2):
        held = keep(cli, archived, "--topic", "*", "--hold", "case 7")
    (hold,) = held["holds"]
    assert (hold["reason"], hold["scope"]["topic"]) == ("case 7", "*")
    assert all(topic["held_by"] == [hold["hold_id"]] and not topic["goes"] for topic in held["topics"])
    said = cli("lake", "keep", "--lake", archived)
    assert hold["hold_id"][:12] in said.out
    assert cli("lake", "info", "--lake", archived, "--json").json["acts"] == 2
    lifted = keep(cli, archived, "--lift", hold["hold_id"][:8])
    assert lifted["holds"] == []
    assert any(topic["goes"] for topic in lifted["topics"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--keep", "3d"), "expected forever, a number of days"),
        (("--keep", "1 day", "--hold", "x"), "Expected one of --keep, --hold, --archive and --lift"),
        (("--topic", "x"), "Expected --keep TIME, --hold REASON or --archive no|yes beside patterns"),
        (("--lift", "ff", "--topic", "x"), "Expected only --lift ID"),
        (("--lift", "ff"), "expected the id of a hold (none is in force), found 'ff'"),
        (("--hold", " "), "expected a reason"),
        (("--topic", "", "--keep", "1 day"), "expected 1 to 255 characters"),
    ],
)
def test_what_is_no_rule_is_refused_and_nothing_is_recorded(cli, lake, words, said) -> None:
    done = cli("lake", "keep", "--lake", lake, *words)
    assert done.exit_code == 2 if "--lift" not in words or "--topic" in words else 1
    assert said in done.err
    assert not list(lake.rglob("_storage-engine"))


def test_a_rule_on_archiving_is_recorded_in_lake_and_journal_once(cli, node) -> None:
    properties, lake = node
    assert cli("archive", properties, "--lake", lake).exit_code == 0
    for _ in range(2):
        found = keep(cli, lake, "--topic", "debug*", "--archive", "no")
    (rule,) = found["archive_rules"]
    assert (rule["archives"], rule["scope"]["topic"]) == (False, "debug*")
    journal = Journal(f"sqlite:///{lake}/journal.db")
    (store,) = journal.all_stores()
    (recorded,) = journal.archive_rules(store.store_id)
    assert (recorded.rule, recorded.person) == (rule["rule_id"], rule["person"])
    said = cli("lake", "keep", "--lake", lake)
    assert rule["rule_id"][:12] in said.out
    (lifted,) = keep(cli, lake, "--topic", "debug*", "--archive", "yes")["archive_rules"]
    assert lifted["archives"]
    assert cli("lake", "info", "--lake", lake, "--json").json["acts"] == 2


def test_a_rule_that_stands_in_the_lake_alone_is_told_with_the_command_that_helps(cli, node) -> None:
    store, lake = node
    words = ("lake", "keep", "--lake", lake, "--topic", "debug*", "--archive", "no")
    done = cli(*words)
    assert "but no journal has it: run this again with --journal URL" in done.out
    assert cli("archive", store, "--lake", lake).exit_code == 0

    def told():
        findings = cli("doctor", store, "--lake", lake, "--json").json["findings"]
        return [it for it in findings if it["kind"] == "archive-rule"]

    (finding,) = told()
    assert "so the messages are archived all the same" in finding["what"]
    assert f"storage-engine lake keep --lake {lake} --topic 'debug*' --archive no" in finding["advice"]
    said = "the rule counts for the stores of this journal 24 hours after it was first recorded there"
    assert said in cli(*words).out
    assert told() == []


def test_a_rule_that_could_leave_nothing_out_is_refused(cli, archived, node) -> None:
    _, lake = node
    for where, topic in ((lake, "__consumer_offsets"), (archived, "SCHEDULE_TOPIC_XXXX")):
        done = cli("lake", "keep", "--lake", where, "--topic", topic, "--archive", "no")
        assert done.exit_code == 2
        assert "a topic of the broker's own: it is always archived" in done.err
        assert keep(cli, where)["archive_rules"] == []


def test_a_rule_for_topics_of_a_commitlog_says_what_enters_all_the_same(cli, archived) -> None:
    done = cli("lake", "keep", "--lake", archived, "--topic", "debug*", "--archive", "no")
    assert done.exit_code == 0
    assert "Copies of them that the broker keeps under other topics are archived" in done.out
    (rule,) = keep(cli, archived)["archive_rules"]
    assert (rule["scope"]["topic"], rule["archives"]) == ("debug*", False)


def test_a_hold_is_recorded_in_both_lakes_and_one_that_is_away_is_named(cli, archived, tmp_path) -> None:
    second = tmp_path / "second"
    assert cli("init-lake", "--lake", second).exit_code == 0
    away = tmp_path / "away"
    words = ("lake", "keep", "--lake", archived, "--second-lake", second, "--hold", "case 7", "--json")
    shutil.move(second, away)
    done = cli(*words)
    assert done.exit_code == 1
    assert [len(lake["holds"]) for lake in done.json["lakes"]] == [1]
    assert len(done.json["faults"]) == 1
    assert str(second) in done.json["faults"][0]
    shutil.move(away, second)
    done = cli(*words)
    assert done.exit_code == 0
    assert [len(lake["holds"]) for lake in done.json["lakes"]] == [1, 1]


def test_a_lake_that_was_not_named_is_told_of(cli, store_copy, lake, tmp_path) -> None:
    store, second = store_copy("clean-stop"), tmp_path / "second"
    assert cli("init-lake", "--lake", second).exit_code == 0
    lakes = ("--lake", lake, "--second-lake", second)
    assert cli("archive", store, *lakes, "--budget", "1MiB").exit_code == 0
    catalog = (lake / "catalog.db").rename(lake / "away.db")
    (lake / "catalog.db").write_bytes(b"what a broken disk reads" * 100)
    assert cli("archive", store, *lakes, "--budget", "1MiB").exit_code == 0
    catalog.replace(lake / "catalog.db")
    done = cli("lake", "keep", "--lake", lake, "--hold", "case 7")
    assert done.exit_code == 0
    assert "where this hold is not recorded: name that lake as well" in done.out
    assert str(second) in done.out


def test_a_record_of_kafka_counts_from_its_first_proof_whatever_its_timestamp(cli, tmp_path) -> None:
    node, lake = unpack_node(tmp_path / "node"), tmp_path / "kafka-lake"
    assert cli("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    properties = node / "server.properties"
    assert cli("archive", properties, "--broker-type", "kafka", "--lake", lake).exit_code == 0
    proven_day = -(-clock_ms() // DAY_MS)
    found = keep(cli, lake, "--topic", "pl*", "--keep", "10 days", "--dry-run")
    days = {topic["topic"]: [going["day"] for going in topic["goes"]] for topic in found["topics"]}
    assert days["plain"] == [proven_day + 10]
    assert {topic for topic, of_topic in days.items() if of_topic} == {"plain"}


def test_doctor_and_info_say_that_an_act_is_lost(cli, store_copy, lake) -> None:
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake, "--budget", "1MiB").exit_code == 0
    keep(cli, lake, "--hold", "case 7")
    (act,) = lake.rglob("_storage-engine/acts/*.json")
    act.unlink()
    findings = cli("doctor", store, "--lake", lake, "--json").json["findings"]
    (finding,) = (finding for finding in findings if finding["kind"] == "lake-acts")
    assert finding["severity"] == "urgent"
    assert act.stem in str(finding)
    told = cli("lake", "info", "--lake", lake, "--json").json
    assert (told["acts"], act.stem in told["acts_fault"]) == (None, True)
    done = cli("gc", "--lake", lake, "--delete")
    assert done.exit_code == 1
    assert "nothing is removed from the lake until that is mended" in done.err
