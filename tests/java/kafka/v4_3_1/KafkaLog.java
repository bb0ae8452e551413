import java.io.File;
import java.io.IOException;
import java.util.Collection;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** The log of Kafka 4: org.apache.kafka.storage.internals.log.UnifiedLog. */
final class KafkaLog {
    private final UnifiedLog log;

    KafkaLog(File dir, LogConfig config, long start, boolean remote, Scheduler scheduler, Time time)
            throws IOException {
        log = UnifiedLog.create(dir, config, start, start, scheduler, new BrokerTopicStats(remote), time, 60_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), true,
            Optional.empty(), new ConcurrentHashMap<>(), remote, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
    }

    void append(long offset, long timestamp, byte[] value) {
        log.appendAsFollower(
            MemoryRecords.withRecords(offset, Compression.NONE, 0, new SimpleRecord(timestamp, value)), 0);
    }

    void roll(long expectedNextOffset) throws IOException {
        log.roll(Optional.of(expectedNextOffset));
    }

    void highWatermark(long offset) throws IOException {
        log.updateHighWatermark(offset);
    }

    void start(long offset) {
        log.maybeIncrementLogStartOffset(offset, LogStartOffsetIncrementReason.ClientRecordDeletion);
    }

    void localStart(long offset) {
        log.maybeIncrementLocalLogStartOffset(offset, LogStartOffsetIncrementReason.SegmentDeletion);
    }

    void highestRemote(long offset) {
        log.updateHighestOffsetInRemoteStorage(offset);
    }

    long highWatermark() {
        return log.highWatermark();
    }

    long start() {
        return log.logStartOffset();
    }

    long localStart() {
        return log.localLogStartOffset();
    }

    long end() {
        return log.logEndOffset();
    }

    Collection<LogSegment> segments() {
        return log.logSegments();
    }

    int deleteOldSegments() throws IOException {
        return log.deleteOldSegments();
    }
}
