"""A short run of the fuzzer that ``make fuzz`` runs for hours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.rounds import rounds

SCRIPT = Path(__file__).with_name("fuzz_codec.py")
INPUTS = rounds("STORAGE_ENGINE_FUZZ_INPUTS", 10_000, 30_000)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_codec", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_codec"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_mutated_frames_come_back_byte_for_byte_and_are_read_as_what_they_are() -> None:
    seen = load().fuzz(inputs=INPUTS, seed=20_261_120)
    assert seen.inputs >= INPUTS
    assert seen.read_plainly >= 2
