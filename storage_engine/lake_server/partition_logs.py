"""One log for each partition: first the lake's records, then the cluster's later records.

Without a cluster, a log has only the lake's records. Readers skip only expired offsets, and missing ones if
the operator allows it. If the cluster's records at archived offsets differ, its later records aren't served.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import pyarrow as pa
from kio.schema.errors import ErrorCode

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.format.transaction_index import AbortedTransaction
from storage_engine.lake.coverage.coverage import merge_intervals, subtract_intervals
from storage_engine.lake_server.archive_reader import LakeReader, Transactions
from storage_engine.lake_server.archived_partitions import Archive, ArchivedPartition
from storage_engine.lake_server.segment_batches import Batches
from storage_engine.lake_server.upstream import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ClusterTopic,
    ClusterView,
    FetchLimits,
    PartitionFetch,
    PartitionKey,
    Upstream,
    UpstreamError,
)


class LogSource(Enum):
    LAKE = "lake"
    CLUSTER = "cluster"
    OUTSIDE = "outside"
    """No source: the offset is before the first one, or after the end."""
    BEHIND = "behind"
    """No source: the cluster's log ends before the archived log, and would use archived offsets again."""


@dataclass(frozen=True, slots=True)
class SeamStep:
    """The source that answers a reader at an offset.

    :param offset: the offset to read from. It is above the requested offset if offsets are skipped.
    :param end: end of the lake's contiguous offsets from ``offset`` on. For other sources it is ``offset``.
    :param missing: skipped offsets that neither expired nor are in the lake or the cluster, as (first, end).
    """

    source: LogSource
    offset: int
    end: int
    missing: tuple[tuple[int, int], ...] = ()


def next_step(partition: ArchivedPartition, offset: int, cluster: tuple[int, int] | None) -> SeamStep:
    """Return the source that answers a reader at an offset.

    :param cluster: the first offset and the end of the cluster's log; None if the cluster wasn't asked, and
        may have any offset that the lake lacks.
    """
    at = max(offset, partition.start)
    archived = partition.range_at(at) if at < partition.end else None
    is_archived = archived is not None and archived.first <= offset and partition.start <= offset
    if is_archived and archived is not None and not archived.refused:
        return SeamStep(LogSource.LAKE, offset, _contiguous_end(partition, offset))
    if cluster is None:
        return SeamStep(LogSource.CLUSTER, offset, offset)
    first, end = cluster
    if first <= offset <= end and (offset < end or end >= partition.end):
        return SeamStep(LogSource.CLUSTER, offset, offset)
    if is_archived:
        # Reading it raises the error with the reason.
        return SeamStep(LogSource.LAKE, offset, _contiguous_end(partition, offset))
    starts = [first, *([partition.start] if partition.ranges else [])]
    if offset < min(starts) or offset > max(end, partition.end):
        return SeamStep(LogSource.OUTSIDE, offset, offset)
    if archived is None and end < partition.end:
        return SeamStep(LogSource.BEHIND, offset, offset)
    following = [] if archived is None else [max(archived.first, partition.start)]
    # A cluster's empty log that ends before the archived log can't continue it.
    begins = [first] if first < end or end >= partition.end else []
    target = min(begin for begin in (*begins, *following) if begin > offset)
    missing = tuple(subtract_intervals(offset, target, merge_intervals(row[:2] for row in partition.expired)))
    if following == [target]:
        return SeamStep(LogSource.LAKE, target, _contiguous_end(partition, target), missing)
    return SeamStep(LogSource.CLUSTER, target, target, missing)


def _contiguous_end(partition: ArchivedPartition, offset: int) -> int:
    """Return the end of the contiguous served offsets from an archived offset on.

    If the offset itself isn't served, return the partition's end.
    """
    end = offset
    for archived in partition.ranges_from(offset):
        if archived.first > end or archived.refused:
            break
        end = archived.end
    return end if end > offset else partition.end


UNDEFINED: Final = -1
_AGAIN: Final = ErrorCode.not_leader_or_follower
"""The error code after which each client repeats its request."""
_MOST_REST_SECONDS = 0.5
_MOST_OF_CLUSTER = 2 << 20
"""Maximum number of the cluster's bytes in one answer. They stay in memory until the client has received
them."""
_MOST_LOGGED = 100_000
"""Maximum number of remembered lines, which aren't logged again. Clients can cause any number of lines."""
_PASSING = (ErrorCode.none, ErrorCode.offset_out_of_range)
_CONTENT = ["offset", "timestamp", "key", "value", "headers"]

Topics = Mapping[str, Mapping[int, ArchivedPartition]]


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """A partition's records for a reader.

    :param stable: last stable offset.
    :param aborted: producer id and first offset of each aborted transaction; None if they weren't requested.
    """

    error: ErrorCode = ErrorCode.none
    records: Batches = b""
    start: int = UNDEFINED
    end: int = UNDEFINED
    stable: int = UNDEFINED
    aborted: tuple[tuple[int, int], ...] | None = None


class Logs:
    """The logs of a lake and its cluster, if there is one. They are used in one event loop.

    :param log: called once with each line for the operator.
    """

    def __init__(self, reader: LakeReader, upstream: Upstream | None, log: Callable[[str], None]) -> None:
        self._reader, self._upstream, self._log = reader, upstream, log
        self._logged: dict[bytes, None] = {}
        self._renewal = asyncio.Lock()
        self._joined: tuple[Archive, ClusterView, Topics] | None = None
        self._compared: dict[tuple[str, int], tuple[int, int, str]] = {}
        self._outcomes: dict[tuple[PartitionKey, int], tuple[Transactions, Transactions]] = {}
        self._ends: dict[PartitionKey, int] = {}
        self._starts: dict[PartitionKey, int] = {}

    @property
    def topics(self) -> Topics:
        """Return all partitions by topic and number, including those that only the cluster has."""
        archive = self._reader.archive
        if self._upstream is None:
            return archive.topics
        view = self._upstream.view
        if self._joined is None or self._joined[0] is not archive or self._joined[1] is not view:
            joined = {name: dict(partitions) for name, partitions in archive.topics.items()}
            for name, topic in view.topics.items():
                partitions = joined.setdefault(name, {})
                if all(partition.topic_id == topic.id_text for partition in partitions.values()):
                    for number in topic.leaders:
                        only = ArchivedPartition(name, number, (), 0, topic_id=topic.id_text)
                        partitions.setdefault(number, only)
            self._joined = archive, view, joined
        return self._joined[2]

    def is_same(self, place: PartitionKey) -> bool:
        """Return whether the cluster has this partition, and its topic is the lake's topic of that name."""
        partition = self.topics.get(place[0], {}).get(place[1])
        return partition is not None and self._is_at_cluster(partition) and not self._is_other(partition)

    def is_other(self, name: str) -> bool:
        """Return whether lake and cluster have different topics of this name."""
        return any(self._is_other(partition) for partition in self.topics.get(name, {}).values())

    def log_once(self, line: str) -> None:
        """Log a line, unless it was logged recently."""
        # Only hashes are kept, because a line may be as long as a client's request.
        digest = hashlib.sha256(line.encode()).digest()
        if digest not in self._logged:
            self._logged[digest] = None
            if len(self._logged) > _MOST_LOGGED:
                del self._logged[next(iter(self._logged))]
            self._log(line)

    def log_gaps(self) -> None:
        """Log each range of expired offsets and each hole once."""
        for line in self._reader.archive.gaps():
            self.log_once(line)

    async def renew(self) -> None:
        """Read the lake's newest commit, and log the gaps in its partitions.

        :raises LakeUnavailableError: the lake can't be read. The earlier state stays.
        """
        async with self._renewal:
            await self._reader.renew()
        self.log_gaps()

    async def fetch(self, wanted: Sequence[PartitionFetch], limits: FetchLimits) -> list[PartitionRecords]:
        """Return the records of partitions, in the order of ``wanted``."""
        answers, across = await self._read_lake(wanted, limits)
        has_some = any(answer.records or answer.error is not ErrorCode.none for answer in answers.values())
        if across:
            budget = limits.max_bytes - sum(len(answer.records) for answer in answers.values())
            seconds = 0.0 if has_some else limits.seconds
            most = max(1, min(budget, _MOST_OF_CLUSTER))
            answers |= await self._read_cluster(across, replace(limits, max_bytes=most, seconds=seconds))
        elif not has_some and limits.seconds > 0:
            # Without a cluster, new records come only by a commit to the lake.
            try:
                await asyncio.wait_for(self._reader.changed.wait(), limits.seconds)
            except TimeoutError:
                pass
            else:
                return await self.fetch(wanted, replace(limits, seconds=0.0))
        return [answers[fetch.place] for fetch in wanted]

    async def offset_of(
        self, place: PartitionKey, timestamp_ms: int, level: int
    ) -> tuple[ErrorCode, int, int]:
        """Return an error code, and the offset and timestamp for a time, or for EARLIEST or LATEST.

        :param timestamp_ms: milliseconds since the epoch, EARLIEST or LATEST.
        :return: -1 as offset if no record has the time or a later one.
        """
        partition = self._partition(place)
        try:
            of_lake = await self._archived_offset_of(partition, timestamp_ms, level)
            if not self._is_at_cluster(partition):
                return ErrorCode.none, *of_lake
            # If the cluster's log begins after this offset, it has no earlier record.
            is_first = self._is_other(partition) or self._starts.get(place, -1) >= of_lake[0] >= 0
            if timestamp_ms != LATEST and of_lake[0] >= 0 and is_first:
                return ErrorCode.none, *of_lake
            self._check_topic(partition)
            assert self._upstream is not None
            self._starts[place], _ = await self._upstream.offset_of(place, EARLIEST)
            of_cluster = await self._upstream.offset_of(place, timestamp_ms, level)
        except UpstreamError as error:
            self.log_once(f"{place[0]}-{place[1]}: {error}")
            return _AGAIN, UNDEFINED, UNDEFINED
        except StorageEngineError as error:
            self.log_once(f"{place[0]}-{place[1]} is not served: {error}")
            return ErrorCode.kafka_storage_error, UNDEFINED, UNDEFINED
        offers = [offer for offer in (of_lake, of_cluster) if offer[0] >= 0 and timestamp_ms != LATEST]
        return ErrorCode.none, *min(offers, default=of_cluster)

    async def _archived_offset_of(
        self, partition: ArchivedPartition, timestamp_ms: int, level: int
    ) -> tuple[int, int]:
        if timestamp_ms == EARLIEST:
            is_known = partition.ranges or not self._is_at_cluster(partition)
            return (partition.start if is_known else UNDEFINED), UNDEFINED
        if timestamp_ms >= 0:
            return await self._reader.offset_at(partition, timestamp_ms) or (UNDEFINED, UNDEFINED)
        if level == READ_COMMITTED and not self._is_at_cluster(partition):
            return (await self._reader.transactions(partition)).stable_at(partition.end), UNDEFINED
        return partition.end, UNDEFINED

    async def _read_lake(
        self, fetches: Sequence[PartitionFetch], limits: FetchLimits
    ) -> tuple[dict[PartitionKey, PartitionRecords], list[tuple[ArchivedPartition, PartitionFetch]]]:
        """Return the lake's records, and the fetches to send to the cluster."""
        left_bytes, has_records = limits.max_bytes, False
        answers: dict[PartitionKey, PartitionRecords] = {}
        across: list[tuple[ArchivedPartition, PartitionFetch]] = []
        for fetch in fetches:
            partition = self._partition(fetch.place)
            start, end = self._start(partition), self._end(partition)
            stop = partition.end
            if self._is_at_cluster(partition):
                step = next_step(partition, fetch.offset, None)
                if step.source is LogSource.CLUSTER:
                    across.append((partition, fetch))
                    continue
                stop = step.end
            elif not start <= fetch.offset <= end:
                # The cluster doesn't name the partition, at least not yet. Its offsets aren't known.
                error = ErrorCode.offset_out_of_range
                if self._upstream is not None:
                    self.log_once(f"{fetch.place[0]}-{fetch.place[1]}: the cluster names no such partition")
                    error = _AGAIN
                answers[fetch.place] = PartitionRecords(error, b"", start, end, end)
                continue
            answer = PartitionRecords(ErrorCode.none, b"", start, end, end)
            if left_bytes > 0 or not has_records:
                # The first partition with records returns at least one batch of any length.
                budget = max(0, min(fetch.max_bytes, left_bytes))
                answer = await self._read_archived(partition, fetch.offset, stop, budget, limits.level)
                is_read = not answer.records and answer.error is ErrorCode.none and answer.stable >= stop
                if is_read and self._is_at_cluster(partition):
                    across.append((partition, replace(fetch, offset=stop)))
                    continue
            answers[fetch.place] = answer
            has_records = has_records or bool(answer.records)
            left_bytes -= len(answer.records)
        return answers, across

    async def _read_archived(
        self, partition: ArchivedPartition, offset: int, stop: int, max_bytes: int, level: int
    ) -> PartitionRecords:
        start, end = self._start(partition), self._end(partition)
        stable = end
        aborted: tuple[tuple[int, int], ...] | None = None
        try:
            if level == READ_COMMITTED:
                transactions = await self._transactions(partition, offset)
                stable, aborted = transactions.stable_at(offset), ()
                if stable >= stop:
                    stable = max(stable, end) if self._is_at_cluster(partition) else stable
            records = await self._reader.batches(partition, offset, min(stop, stable), max_bytes)
            if records and level == READ_COMMITTED:
                within = transactions.within(offset, min(stable, partition.end))
                aborted = tuple((transaction.producer_id, transaction.first_offset) for transaction in within)
        except StorageEngineError as error:
            return self._refuse_fetch(partition, str(error))
        return PartitionRecords(ErrorCode.none, records, start, end, stable, aborted)

    async def _read_cluster(
        self, across: Sequence[tuple[ArchivedPartition, PartitionFetch]], limits: FetchLimits
    ) -> dict[PartitionKey, PartitionRecords]:
        """Return the cluster's records. For an offset that it lacks, use the lake's newest commit."""
        assert self._upstream is not None
        records: dict[PartitionKey, PartitionRecords] = {}
        fetches: list[tuple[ArchivedPartition, PartitionFetch, ClusterTopic | None]] = []
        for partition, fetch in across:
            compared = self._topic(partition)
            try:
                if fault := await self._find_difference(partition):
                    records[fetch.place] = self._refuse_fetch(partition, fault)
                else:
                    fetches.append((partition, fetch, compared))
            except UpstreamError as error:
                self.log_once(f"{fetch.place[0]}-{fetch.place[1]}: {error}")
                records[fetch.place] = PartitionRecords(_AGAIN)
            except StorageEngineError as error:
                records[fetch.place] = self._refuse_fetch(partition, str(error))
        answers = await self._upstream.fetch(
            [fetch for _, fetch, _ in fetches], replace(limits, seconds=0.0) if records else limits
        )
        for partition, fetch, compared in fetches:
            answer = answers.get(fetch.place)
            if answer is not None and answer.error_code is ErrorCode.offset_out_of_range:
                records[fetch.place] = await self._answer_beyond(fetch, limits)
            else:
                records[fetch.place] = self._checked_answer(partition, answer, compared)
        if all(answer.error not in _PASSING for answer in records.values()):
            # Clients repeat their requests at once.
            await asyncio.sleep(min(limits.seconds, _MOST_REST_SECONDS))
        return records

    def _checked_answer(
        self, partition: ArchivedPartition, answer: Any, compared: ClusterTopic | None
    ) -> PartitionRecords:
        """Return the cluster's records, or an error if the topic isn't the compared one any more."""
        is_compared = self._topic(partition) == compared
        if answer is None or answer.error_code is not ErrorCode.none or not is_compared:
            return PartitionRecords(_AGAIN)
        if answer.high_watermark < partition.end:
            return self._refuse_fetch(partition, _describe_lag(partition, answer.high_watermark))
        place = partition.topic, partition.number
        self._ends[place], self._starts[place] = answer.high_watermark, answer.log_start_offset
        aborted = answer.aborted_transactions
        return PartitionRecords(
            ErrorCode.none,
            answer.records or b"",
            self._start(partition),
            answer.high_watermark,
            answer.last_stable_offset,
            None if aborted is None else tuple((entry.producer_id, entry.first_offset) for entry in aborted),
        )

    async def _answer_beyond(self, fetch: PartitionFetch, limits: FetchLimits) -> PartitionRecords:
        """Return the answer to a fetch at an offset that the cluster lacks."""
        assert self._upstream is not None
        try:
            await self.renew()
            partition = self._partition(fetch.place)
            compared = self._topic(partition)
            bounds = [await self._upstream.offset_of(fetch.place, which) for which in (EARLIEST, LATEST)]
            fault = await self._find_difference(partition)
        except StorageEngineError as error:
            self.log_once(f"{fetch.place[0]}-{fetch.place[1]}: {error}")
            return PartitionRecords(_AGAIN)
        first, end = (offset for offset, _ in bounds)
        self._starts[fetch.place], self._ends[fetch.place] = first, end
        offset, served = fetch.offset, (LogSource.LAKE, LogSource.CLUSTER)
        while (step := next_step(partition, offset, (first, end))).source in served:
            for begin, stop in step.missing:
                lost = f"offsets [{begin}, {stop}) are neither in the lake nor at the cluster: LOST"
                if not self._reader.skip_holes:
                    return self._refuse_fetch(
                        partition, f"{lost}. With --holes skip, consumers continue after them"
                    )
                self.log_once(f"{partition.topic}-{partition.number}: {lost}. They are skipped")
            if step.source is LogSource.CLUSTER and fault:
                return self._refuse_fetch(partition, fault)
            if step.source is LogSource.CLUSTER:
                fetches = [replace(fetch, offset=step.offset)]
                answers = await self._upstream.fetch(fetches, replace(limits, seconds=0.0))
                return self._checked_answer(partition, answers.get(fetch.place), compared)
            read = await self._read_archived(partition, step.offset, step.end, fetch.max_bytes, limits.level)
            if read.records or read.error is not ErrorCode.none or read.stable < step.end:
                return read
            offset = step.end
        if step.source is LogSource.BEHIND:
            return self._refuse_fetch(partition, _describe_lag(partition, end))
        return PartitionRecords(
            ErrorCode.offset_out_of_range, b"", self._start(partition), self._end(partition)
        )

    async def _transactions(self, partition: ArchivedPartition, offset: int) -> Transactions:
        """Return a partition's transactions.

        Transactions may be open at the end of the archived log. Those that began below the cluster's last
        stable offset have ended. The cluster's answer with the first batch after the archived log names the
        aborted transactions.
        """
        archived = await self._reader.transactions(partition)
        end = next((end for end, _ in archived.sections if offset < end), offset)
        if archived.stable_at(offset) >= end or not self._is_at_cluster(partition):
            return archived
        assert self._upstream is not None
        place = partition.topic, partition.number
        outcome = self._outcomes.get((place, end))
        if outcome is not None and outcome[0] is archived:
            return outcome[1]
        compared = self._topic(partition)
        try:
            if await self._find_difference(partition):
                return archived
        except StorageEngineError as error:
            self.log_once(f"{partition.topic}-{partition.number}: {error}")
            return archived
        answers = await self._upstream.fetch(
            [PartitionFetch(place, end, 1)], FetchLimits(READ_COMMITTED, 1, 0, 0.0)
        )
        answer = answers.get(place)
        if answer is None or not answer.records or answer.last_stable_offset <= end:
            return archived
        if self._topic(partition) != compared:
            return archived
        aborted = [
            AbortedTransaction(entry.producer_id, entry.first_offset, end, end)
            for entry in answer.aborted_transactions or ()
            if entry.first_offset < end
        ]
        transactions = Transactions(
            (*archived.aborted, *aborted),
            tuple((ended, ended if ended == end else stable) for ended, stable in archived.sections),
        )
        self._outcomes[place, end] = archived, transactions
        return transactions

    async def _find_difference(self, partition: ArchivedPartition) -> str:
        """Return why the cluster's log can't continue the archived log, or "" if it can.

        The last archived batch is compared with the cluster's batch at its offsets. A finished
        comparison stays valid until the archived log grows or the partition's leader changes.

        :raises UpstreamError: the cluster doesn't answer.
        :raises StorageEngineError: the cluster has another topic of this name, or the lake can't be read.
        """
        assert self._upstream is not None
        self._check_topic(partition)
        key, place = (partition.topic_id, partition.number), (partition.topic, partition.number)
        topic = self._topic(partition)
        epoch = UNDEFINED if topic is None else topic.epochs.get(partition.number, UNDEFINED)
        fault = ""
        if (compared := self._compared.get(key)) is not None and compared[:2] == (partition.end, epoch):
            return compared[2]
        archived = await self._reader.last_batch(partition)
        if archived:
            base = int.from_bytes(archived[:8], "big", signed=True)
            size = len(archived)
            answers = await self._upstream.fetch(
                [PartitionFetch(place, base, size)], FetchLimits(0, size, 0, 0.0)
            )
            answer = answers.get(place)
            if answer is None or answer.error_code not in _PASSING:
                raise UpstreamError("expected the batch of the last archived offset, found no answer")
            if not answer.records:
                first, _ = await self._upstream.offset_of(place, EARLIEST)
                end, _ = await self._upstream.offset_of(place, LATEST)
                if end < partition.end:
                    return _describe_lag(partition, end)
                if first <= base:
                    raise UpstreamError("expected the batch of the last archived offset, found none yet")
            elif not answer.records.startswith(archived):
                # Only offsets in both are compared: a log cleaner may have removed some of a batch's records.
                ours, theirs = _records(archived), _records(answer.records)
                if different := [at for at in ours.keys() & theirs.keys() if ours[at] != theirs[at]]:
                    fault = (
                        f"the cluster has another record at offset {min(different)} than the lake. The "
                        "cluster's log was truncated and written again. Its records after the archived "
                        "offsets aren't served"
                    )
        self._compared[key] = partition.end, epoch, fault
        return fault

    def _check_topic(self, partition: ArchivedPartition) -> None:
        """Raise StorageEngineError if lake and cluster have different topics of this name."""
        if self._is_other(partition):
            assert self._upstream is not None
            raise StorageEngineError(
                f"the cluster has another topic of this name: expected the id {partition.topic_id}, found "
                f"{self._upstream.view.topics[partition.topic].id_text}. Nothing is served from the cluster"
            )

    def _topic(self, partition: ArchivedPartition) -> ClusterTopic | None:
        return None if self._upstream is None else self._upstream.view.topics.get(partition.topic)

    def _is_other(self, partition: ArchivedPartition) -> bool:
        topic = self._topic(partition)
        return topic is not None and topic.id_text != partition.topic_id

    def _is_at_cluster(self, partition: ArchivedPartition) -> bool:
        topic = self._topic(partition)
        return topic is not None and (partition.number in topic.leaders or self._is_other(partition))

    def _partition(self, place: PartitionKey) -> ArchivedPartition:
        # A partition that was dropped since has no offsets.
        return self.topics.get(place[0], {}).get(place[1]) or ArchivedPartition(*place, (), 0)

    def _start(self, partition: ArchivedPartition) -> int:
        of_cluster = self._starts.get((partition.topic, partition.number), partition.start)
        return min(partition.start, of_cluster) if partition.ranges else of_cluster

    def _end(self, partition: ArchivedPartition) -> int:
        return max(partition.end, self._ends.get((partition.topic, partition.number), 0))

    def _refuse_fetch(self, partition: ArchivedPartition, reason: str) -> PartitionRecords:
        self.log_once(f"{partition.topic}-{partition.number} is not served: {reason}")
        start, end = self._start(partition), self._end(partition)
        return PartitionRecords(ErrorCode.kafka_storage_error, b"", start, end, end)


def _describe_lag(partition: ArchivedPartition, end: int) -> str:
    return (
        f"the cluster's log ends at offset {end}, before the archived log's end {partition.end}. The "
        "cluster's records after the archived offsets aren't served until its log is as long"
    )


def _records(batches: bytes) -> dict[int, dict[str, Any]]:
    tables = [rows for rows, _ in CODEC.decode(memoryview(batches), 0)]
    rows = pa.concat_tables(tables) if tables else None
    records = [] if rows is None else rows.select(["kind", *_CONTENT]).to_pylist()
    return {row["offset"]: row for row in records if row["kind"] in ("message", "control")}
