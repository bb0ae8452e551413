"""Every code block of docs and README does what the page says, on the data that it says."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.extras import QUALITY
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc import compaction
from storage_engine.model.plan import DELETING, Reason
from storage_engine.model.settings.policy import Policy, settings_of
from storage_engine.retention.report.report import Outcome
from tests.docs.code_blocks import KEYS, LANGUAGES, PAGES, ROOT, Block, blocks_of, commands_of
from tests.docs.fragments import PARSERS
from tests.docs.sandbox import PROGRAM, STARTS, Sandbox, pattern, unknown_words
from tests.extras import take_away

BLOCKS = {page: list(blocks_of(page)) for page in PAGES}
EVERY = [block for blocks in BLOCKS.values() for block in blocks]
IN_EACH_RUN = ("quickstart.md", "disk.md")
"""Pages whose commands are run in make test, too; those of the others say much the same on the same data."""
MOST_NOT_RUN = 20
"""Blocks that need a running broker, Airflow or a network; a new page has to run what it shows."""


def _places(blocks: list[Block]) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in blocks]


def test_blocks_say_what_they_are() -> None:
    assert EVERY
    odd = [block.place for block in EVERY if block.language not in LANGUAGES]
    assert odd == [], f"expected one of {LANGUAGES}"
    assert [b.place for b in EVERY if set(b.said) - set(KEYS)] == []
    assert [b.place for b in EVERY if b.said.get("start", "nothing") not in STARTS] == []


def test_code_is_fenced() -> None:
    """An indented block is run by nobody."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        is_list = False
        for paragraph in text.split("\n\n"):
            indented = paragraph.startswith("    ")
            assert is_list or not indented, f"{page.name}: {paragraph}"
            is_list = is_list if indented else bool(re.search(r"^(?:\d+\.|[-*]) ", paragraph, re.MULTILINE))


def test_few_blocks_are_not_run() -> None:
    assert len([block for block in EVERY if "not run" in block.said]) <= MOST_NOT_RUN


@pytest.mark.parametrize("block", _places([block for block in EVERY if "tested by" in block.said]))
def test_a_test_that_runs_blocks_names_their_page(block: Block) -> None:
    assert block.page.name in (ROOT / block.said["tested by"]).read_text()


BAD_INPUT = "2"
"""Exit code of a command that is wrong, as some are on purpose; it is run to see that."""


@pytest.mark.parametrize(
    "block", _places([b for b in EVERY if b.language == "console" and b.said.get("exit") != BAD_INPUT])
)
def test_commands_and_options_exist(block: Block) -> None:
    lines = [command.line for command in commands_of(block)]
    ours = [line for line in lines if line.startswith(f"{PROGRAM} ")]
    assert {line: unknown_words(line) for line in ours if unknown_words(line)} == {}
    targets = {words[1] for line in lines if (words := line.split())[0] == "make"}
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = [" ".join(one.split()) for one in re.findall(rf"`({PROGRAM} [a-z][^`]*)`", text)]
    wrong = {line: unknown_words(line.replace("…", "X")) for line in named}
    assert {
        line: said
        for line, said in wrong.items()
        if said and not re.match(r"missing|.* requires an argument", said)
    } == {}


FRAGMENTS = [
    block for block in EVERY if block.language in ("json", "ini", "toml") and "not run" not in block.said
]


@pytest.mark.parametrize("block", _places(FRAGMENTS))
def test_configuration_is_what_its_reader_takes(block: Block) -> None:
    PARSERS[block.said.get("is", block.language)](block.text)


def _runs(block: Block) -> bool:
    return not {"not run", "tested by"} & set(block.said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name in IN_EACH_RUN else pytest.mark.again)
        for page, blocks in BLOCKS.items()
        if any(block.language == "console" and _runs(block) for block in blocks)
    ],
)
def test_commands_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, QUALITY)
    with ExitStack() as sandboxes:
        _run_all(BLOCKS[page], tmp_path, monkeypatch, sandboxes)


def _run_all(
    blocks: list[Block], directory: Path, monkeypatch: pytest.MonkeyPatch, sandboxes: ExitStack
) -> None:
    sandbox: Sandbox | None = None
    for number, block in enumerate(blocks):
        if "start" in block.said or sandbox is None:
            sandbox = Sandbox(directory / str(number), monkeypatch)
            sandboxes.callback(sandbox.end)
            STARTS[block.said.get("start", "sample")](sandbox)
        if "before" in block.said:
            assert sandbox.run(block.said["before"])[0] == 0, block.place
        if "file" in block.said:
            path = Path(sandbox.inside(block.said["file"]))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(sandbox.inside(block.text))
        if block.language == "console" and _runs(block):
            _follow(sandbox, block)


def _follow(sandbox: Sandbox, block: Block) -> None:
    commands = list(commands_of(block))
    for command in commands:
        code, printed = sandbox.run(command.line)
        expected = int(block.said.get("exit", 0)) if command is commands[-1] else 0
        assert code == expected, f"{block.place}: {command.line}\n{printed}"
        if command.prints is not None:
            text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
            assert pattern(command.prints).fullmatch(text), (
                f"{block.place}: {command.line}\nprints\n{text}\nnot\n{command.prints}"
            )


def test_a_policy_that_is_shown_has_settings() -> None:
    """The reader of policies refuses what isn't one; else the blocks above would prove nothing."""
    with pytest.raises(AssertionError, match="none of its settings"):
        PARSERS["policy"]('{"lag_polcy": "block"}')
    assert settings_of(Policy)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{PROGRAM} inspect /data/store", None),
        (f"{PROGRAM} inspekt /data/store", "No such command"),
        (f"{PROGRAM} inspect /data/store --queuez", "No such option"),
        (f"{PROGRAM} inspect", "missing"),
        (f"{PROGRAM} lake copy --lake /lake --to /backup/lake > x", None),
    ],
)
def test_a_wrong_command_is_found(line: str, said: str | None) -> None:
    found = unknown_words(line)
    assert found is None if said is None else said in str(found)


def test_a_wrong_output_is_found() -> None:
    assert pattern("7 segments\n…\nthe end").fullmatch("7 segments\na\nb\nthe end\n")
    assert pattern("plan … ends").fullmatch("plan 60df ends\n")
    assert pattern("7 segments\nthe end").fullmatch("7 segments\na\nthe end\n") is None
    assert pattern("plan … ends").fullmatch("plan\nends\n") is None


def test_troubleshooting_has_every_reason_to_keep_a_segment_and_every_outcome() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    words = [*(one for one in Reason if one not in DELETING), *Outcome]
    assert [word for word in words if f"`{word}`" not in page] == []


@pytest.mark.slow
def test_queries_find_something_on_the_sample_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand; that they find what is true, also in Spark, is for tests/integration/test_query.py."""
    sandbox = Sandbox(tmp_path / "query", monkeypatch)
    STARTS["archived"](sandbox)
    lake = sandbox.directory / "lake"
    small = answers(lake)
    assert len(small) > 10
    # As if the log had one topic: larger files take the place of small ones.
    monkeypatch.setattr(compaction, "topic_of", lambda broker, log: "orders")
    assert compaction.compact_lake(open_lake(LakeConfig.local(lake))).larger_files == 1
    assert answers(lake) == small


def answers(lake: Path) -> dict[str, list[str]]:
    """Return what each query finds, by its place in the page."""
    names: dict[str, Any] = {"LAKE": str(lake)}
    found: dict[str, Any] = {}
    for block in BLOCKS[ROOT / "docs" / "query.md"]:
        if block.said.get("tested by") == "tests/docs/test_deletion_queries.py":
            # Nothing was deleted there.
            continue
        if block.language == "python" and block.said.get("engine") != "spark":
            names.pop("answer", None)
            exec(compile(block.text, block.place, "exec"), names)
            found[block.place] = names.get("answer", [None])
        elif block.language == "sql" and block.said.get("engine") != "spark":
            found[block.place] = names["duckdb"].sql(block.text).to_arrow_table()
        else:
            continue
        assert len(found[block.place]), block.place
    names["duckdb"].execute("DROP VIEW messages")
    names["duckdb"].remove_function("decompress_body")
    tables = {place: getattr(it, "to_pylist", lambda it=it: list(it))() for place, it in found.items()}
    return {place: sorted(map(str, rows)) for place, rows in tables.items()}


def test_python_is_run_by_a_test_that_says_so() -> None:
    engines = ("pandas", "pyiceberg", "duckdb", "pyarrow")
    python = [b for b in EVERY if b.language in ("python", "sql") and _runs(b)]
    assert [b.place for b in python if b.said.get("engine") not in engines] == []
    assert {b.page.name for b in python} <= {"query.md", "format.md"}
    for block in python:
        compile(block.text, block.place, "exec")


def test_messages_that_troubleshooting_quotes_are_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row) if " " in text]
    code = " ".join(path.read_text() for path in (ROOT / "storage_engine").rglob("*.py"))
    assert len(quoted) > 5
    assert [text for text in quoted if any(part.strip() not in code for part in text.split("…"))] == []
