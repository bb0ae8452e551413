import java.io.File;
import java.util.Collection;
import java.util.concurrent.ConcurrentHashMap;

import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import scala.Option;

/** The log of Kafka 3.9: kafka.log.UnifiedLog. */
final class KafkaLog {
    private final UnifiedLog log;

    KafkaLog(File dir, LogConfig config, long start, boolean remote, Scheduler scheduler, Time time) {
        log = UnifiedLog.apply(dir, config, start, start, scheduler, new BrokerTopicStats(remote), time, 60_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), true,
            Option.empty(), false, new ConcurrentHashMap<>(), remote, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
    }

    void append(long offset, long timestamp, byte[] value) {
        log.appendAsFollower(
            MemoryRecords.withRecords(offset, Compression.NONE, 0, new SimpleRecord(timestamp, value)), 0);
    }

    void roll(long expectedNextOffset) {
        log.roll(Option.apply(expectedNextOffset));
    }

    void highWatermark(long offset) {
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

    int deleteOldSegments() {
        return log.deleteOldSegments();
    }
}
