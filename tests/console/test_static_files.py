"""What the console's page is made of: words in two languages, a vendored library, nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[2] / "storage_engine" / "plugins" / "static"
OWN = sorted(path for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".html"))
SCRIPTS = [path for path in OWN if path.suffix == ".js"]
_WORD = re.compile(r'^  (\w+): (".*"),$', re.MULTILINE)
_ASKED = re.compile(r'\b(?:t|counted|named)\(\s*"(\w+)"')
_PLACES = re.compile(r"\{(\w+)\}")


def words(language: str) -> dict[str, str]:
    text = "".join(path.read_text() for path in SCRIPTS if path.name.startswith(f"words_{language}"))
    return {key: json.loads(value) for key, value in _WORD.findall(text)}


def test_both_languages_have_the_same_words_with_the_same_places_for_values() -> None:
    english, chinese = words("en"), words("zh")
    assert len(english) > 300
    assert list(english) == list(chinese)
    places = {key: sorted(set(_PLACES.findall(text))) for key, text in english.items()}
    assert {key: sorted(set(_PLACES.findall(text))) for key, text in chinese.items()} == places


def test_every_word_that_the_page_asks_for_is_there() -> None:
    known = words("en")
    asked = {key for path in SCRIPTS for key in _ASKED.findall(path.read_text())}
    assert len(asked) > 150
    assert {
        key for key in asked if key not in known and not any(one.startswith(f"{key}_") for one in known)
    } == set()


def test_every_word_is_asked_for() -> None:
    source = "\n".join(path.read_text() for path in SCRIPTS if not path.name.startswith("words_"))
    made = {found.rstrip("_") for found in re.findall(r"`(\w+_)\$\{", source)}
    made |= set(re.findall(r'\bnamed\("(\w+)"', source)) | set(re.findall(r'\bcounted\(\s*"(\w+)"', source))
    quoted = set(re.findall(r'"(\w+)"', source))

    def is_asked(key: str) -> bool:
        return key in quoted or any(key.startswith(f"{start}_") for start in made)

    assert [key for key in words("en") if not is_asked(key)] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_english_words_have_no_chinese_letter_and_chinese_ones_have_some(language: str) -> None:
    chinese = re.compile(r"[\u4e00-\u9fff]")
    without = {key for key, text in words(language).items() if not chinese.search(text)}
    if language == "en":
        assert without == set(words("en"))
    else:
        # What is only figures, names and signs.
        assert {key for key in without if re.search(r"[a-z]{2}", _PLACES.sub("", words("zh")[key]))} <= {
            "dag",
        }


def test_the_vendored_library_is_what_was_checked_in() -> None:
    folder = STATIC / "uplot"
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", (folder / "VERSION").read_text())
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("LICENSE", "uPlot.iife.min.js", "uPlot.min.css")
    }
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_nothing_is_fetched_from_elsewhere_and_nothing_is_inline() -> None:
    for path in OWN:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//\w+\.\w+/", text), path
        assert not re.search(r"innerHTML|insertAdjacentHTML|outerHTML|\beval\(|new Function", text), path
        assert len(text.splitlines()) <= 400, path
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page) == []
    # Each module is asked for at once, not only when the one that imports it has come.
    others = {"icon.svg", "uplot/uPlot.min.css", "base.css", "views.css", "uplot/uPlot.iife.min.js"}
    named = set(re.findall(r'(?:src|href)="static/([^"]+)"', page))
    assert len(re.findall(r'(?:src|href)="', page)) == len(named)
    assert named == others | {path.name for path in SCRIPTS}
    modules = {name for path in SCRIPTS for name in re.findall(r'from "\./([\w.]+)"', path.read_text())}
    assert modules | {"main.js"} == {path.name for path in SCRIPTS}
