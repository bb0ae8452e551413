"""The rules behind the expectations: which rows of a fact table are as they should be.

Pure pandas; each function takes the columns that its expectation names and returns one boolean a row. Those
of the suites of rows take a DataFrame of Spark as well, and return a Column then.
Text is "" and an offset is -1 where a fact table has nothing to say.
"""

from __future__ import annotations

import pandas as pd

_NOWHERE = ("LOST", "UNKNOWN")


def named_by_offset(rows: pd.DataFrame) -> pd.Series[bool]:
    """A segment's name is 20 digits and its first frame carries that physical offset.

    (``MappedFileQueue#load`` takes the offset from the name; ``CommitLog#checkMessageAndReturnSize``
    compares nothing with it, so only the frame itself tells.)

    :param rows: name, first_frame_offset (-1: no message begins the file).
    """
    well_named = rows["name"].str.fullmatch(r"\d{20}")
    offset = pd.to_numeric(rows["name"].where(well_named, "-1")).astype("int64")
    first = rows["first_frame_offset"]
    return well_named & ((first == -1) | (first == offset))


def back_to_back(rows: pd.DataFrame) -> pd.Series[bool]:
    """Each row begins where the row before it in its group ends; nothing has a negative start.

    :param rows: group, start, end by position, in ascending order.
    """
    group, start, end = (rows.iloc[:, position] for position in range(3))
    # A fill value keeps the offsets integers: as floats they lose digits beyond 2^53.
    previous_end = end.groupby(group, sort=False).shift(fill_value=-1)
    return (start >= 0) & (end >= start) & ((previous_end == -1) | (previous_end == start))


def equal(rows: pd.DataFrame) -> pd.Series[bool]:
    """Both columns hold the same; a row whose second one is unknown ("" or -1) has nothing to compare.

    :param rows: expected, found by position.
    """
    expected, found = rows.iloc[:, 0], rows.iloc[:, 1]
    return (found == expected) | (found == ("" if found.dtype.kind not in "iu" else -1))


def live_entries_at_or_above(rows: pd.DataFrame) -> pd.Series[bool]:
    """The first live entry, and what follows it, points at or above the log's min offset.

    :param rows: log_min_offset, first_live_offset (-1: every entry is dead), lowest_live_offset.
    """
    dead = rows["first_live_offset"] == -1
    return dead | (
        (rows["first_live_offset"] >= rows["log_min_offset"])
        & (rows["lowest_live_offset"] >= rows["log_min_offset"])
    )


def within(rows: pd.DataFrame) -> pd.Series[bool]:
    """low ≤ first ≤ last ≤ high, where first and last are known (not -1).

    :param rows: low, first, last, high by position.
    """
    low, first, last, high = (rows.iloc[:, position] for position in range(4))
    return (first == -1) | (last == -1) | ((low <= first) & (first <= last) & (last <= high))


def covered(rows: pd.DataFrame) -> pd.Series[bool]:
    """Archived rows cover [base_offset, end_offset) without gap.

    :param rows: base_offset, end_offset, first_row_offset, last_row_end, row_bytes, gaps.
    """
    return (
        (rows["first_row_offset"] == rows["base_offset"])
        & (rows["last_row_end"] == rows["end_offset"])
        & (rows["row_bytes"] >= rows["end_offset"] - rows["base_offset"])
        & (rows["gaps"] == 0)
    )


def one_interval(rows: pd.DataFrame) -> pd.Series[bool]:
    """Judge whether store and lake hold one interval: each range begins where the one before it ends.

    A range that is lost doesn't count, so the range behind a gap breaks the rule; one that a person
    gave up (WARNING) does. What is unknown counts as lost.

    :param rows: log, start_offset, end_offset, where, status.
    """
    held = not_lost(rows)
    good = pd.Series(True, index=rows.index)
    good[held] = back_to_back(rows.loc[held, ["log", "start_offset", "end_offset"]])
    return good


def not_lost(rows: pd.DataFrame) -> pd.Series[bool]:
    """No range is lost unless a person decided it. What is unknown counts as lost.

    :param rows: where, status.
    """
    return ~rows["where"].isin(_NOWHERE) | (rows["status"] != "FAILURE")


def not_let_go(rows: pd.DataFrame) -> pd.Series[bool]:
    """No range is gone by a person's decision.

    :param rows: where, status.
    """
    return (rows["where"] != "LOST") | (rows["status"] != "WARNING")


def same_bytes(rows: pd.DataFrame) -> pd.Series[bool]:
    """Judge whether hashes agree where store and lake overlap; an unchanged file needs no new one.

    :param rows: archived_sha256, local_sha256 ("" when not read), unchanged.
    """
    read = rows["local_sha256"] != ""
    return (read & (rows["local_sha256"] == rows["archived_sha256"])) | (~read & rows["unchanged"])


def chained(rows: pd.DataFrame) -> pd.Series[bool]:
    """A receipt hashes to what it says, and names the hash of the one before it.

    :param rows: row_hash, computed_row_hash, previous_hash, computed_previous_hash.
    """
    return (rows["row_hash"] == rows["computed_row_hash"]) & (
        rows["previous_hash"] == rows["computed_previous_hash"]
    )


def blank(rows: pd.DataFrame) -> pd.Series[bool]:
    """Nothing is said against a row: its text is empty.

    :param rows: the text, then what a reader wants to see beside it.
    """
    return rows.iloc[:, 0] == ""


def as_receipted(rows: pd.DataFrame) -> pd.Series[bool]:
    """A data file is there, with the length and (where it was read) the hash of its receipt.

    :param rows: expected_bytes, found_bytes (-1: no such file), expected_sha256, found_sha256 ("": not read).
    """
    unread = rows["found_sha256"] == ""
    return (rows["found_bytes"] == rows["expected_bytes"]) & (
        unread | (rows["found_sha256"] == rows["expected_sha256"])
    )


def in_table_once(rows: pd.DataFrame) -> pd.Series[bool]:
    """The table's current snapshot has a data file exactly once, and deletes nothing from it.

    :param rows: times_in_table, delete_files.
    """
    return (rows["times_in_table"] == 1) & (rows["delete_files"] == 0)


def unique(rows: pd.DataFrame) -> pd.Series[bool]:
    """No two archived rows cover the same bytes, and their number is the receipt's.

    :param rows: duplicates, expected_rows, found_rows.
    """
    return (rows["duplicates"] == 0) & (rows["found_rows"] == rows["expected_rows"])


def none(rows: pd.DataFrame) -> pd.Series[bool]:
    """A count is zero.

    :param rows: the count, then what a reader wants to see beside it.
    """
    return rows[rows.columns[0]] == 0


def counted(rows: pd.DataFrame) -> pd.Series[bool]:
    """As many messages are there as the receipt says.

    :param rows: expected_messages, found_messages.
    """
    return rows["found_messages"] == rows["expected_messages"]


def follows_on(rows: pd.DataFrame) -> pd.Series[bool]:
    """A segment begins at the offset where the one archived before it ends.

    :param rows: segment_offset, previous_end (-1: none comes before it).
    """
    return (rows["previous_end"] == -1) | (rows["previous_end"] == rows["segment_offset"])


def in_range(rows: pd.DataFrame) -> pd.Series[bool]:
    """A value lies within its bounds, where it says something (isn't -1).

    :param rows: low, value, high.
    """
    value = rows["value"]
    return (value == -1) | ((rows["low"] <= value) & (value <= rows["high"]))
