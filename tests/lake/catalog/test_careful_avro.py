"""A damaged manifest is an exception, never the end of the process."""

from __future__ import annotations

import pyiceberg.avro.file
import pytest

from storage_engine.lake.catalog.placed_table import CarefulDecoder, careful_avro

_A_COUNT_BEYOND_THE_CONTENT = b"\xfe\xff\xff\xff\xff\xff\xff\x1f"


def test_a_count_beyond_the_content_is_the_end_of_the_file() -> None:
    with careful_avro():
        decoder = pyiceberg.avro.file.new_decoder(_A_COUNT_BEYOND_THE_CONTENT)
        with pytest.raises(EOFError):
            decoder.read_ints(decoder.read_int())


def test_the_quick_decoder_is_back_when_the_last_careful_reader_is_done() -> None:
    with careful_avro():
        with careful_avro():
            pass
        assert isinstance(pyiceberg.avro.file.new_decoder(b""), CarefulDecoder)
    assert not isinstance(pyiceberg.avro.file.new_decoder(b""), CarefulDecoder)


def test_content_that_is_cut_short_is_not_taken_for_its_end() -> None:
    with careful_avro(), pytest.raises(ValueError, match="cut short"):
        pyiceberg.avro.file.new_decoder(b"ab").read(3)
