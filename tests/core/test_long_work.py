from __future__ import annotations

import gc

import pytest

from storage_engine.core.long_work import no_collection


def test_the_collector_runs_again_behind_the_block_and_behind_an_error() -> None:
    with no_collection():
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_does_not_run_stays_so() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
