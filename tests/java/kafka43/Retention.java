import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Makes a log a line and has Kafka delete of it what is old.
 *
 * A line: retention.ms, retention.bytes, cleanup.policy, log start, high watermark, now; then a segment each
 * as records:bytes:timestamp. Printed: end, the segments as base:bytes:timestamp, and the bases that are left.
 */
public class Retention {
    private static final byte[] KEY = {1};

    static final class Clock implements Time {
        long now;

        public long milliseconds() {
            return now;
        }

        public long nanoseconds() {
            return now * 1_000_000;
        }

        public void sleep(long ms) {
            now += ms;
        }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {
        }
    }

    /** Runs nothing: what is deleted later than in the pass itself is not looked at. */
    static final class Never implements Scheduler {
        public void startup() {
        }

        public void shutdown() {
        }

        public ScheduledFuture<?> schedule(String name, Runnable task, long delay, long period) {
            return null;
        }

        public void resizeThreadPool(int size) {
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createTempDirectory(Path.of(arguments[0]), "logs");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        int number = 0;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Path log = Files.createDirectory(directory.resolve("t-" + number++));
            System.out.println(pass(log.toFile(), line.split(" ")));
            try (Stream<Path> files = Files.walk(log)) {
                files.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
        }
    }

    static String pass(File directory, String[] words) throws Exception {
        Properties properties = new Properties();
        properties.put("retention.ms", words[0]);
        properties.put("retention.bytes", words[1]);
        properties.put("cleanup.policy", words[2]);
        properties.put("segment.index.bytes", "1200");
        properties.put("segment.ms", Long.toString(Long.MAX_VALUE));
        properties.put("message.timestamp.after.max.ms", Long.toString(Long.MAX_VALUE));
        Clock clock = new Clock();
        clock.now = Long.parseLong(words[5]);
        UnifiedLog log = UnifiedLog.create(directory, new LogConfig(properties), 0, 0, new Never(),
            new BrokerTopicStats(), clock, 900_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(1), true, Optional.of(Uuid.randomUuid()));
        for (int i = 6; i < words.length; i++) {
            String[] segment = words[i].split(":");
            if (i > 6) {
                log.roll();
            }
            List<SimpleRecord> records = new ArrayList<>();
            for (int k = 0; k < Integer.parseInt(segment[0]); k++) {
                byte[] value = new byte[Integer.parseInt(segment[1])];
                records.add(new SimpleRecord(Long.parseLong(segment[2]), KEY, value));
            }
            if (!records.isEmpty()) {
                SimpleRecord[] all = records.toArray(new SimpleRecord[0]);
                log.appendAsLeader(MemoryRecords.withRecords(Compression.NONE, all), 0);
            }
        }
        log.updateHighWatermark(Long.parseLong(words[4]));
        log.maybeIncrementLogStartOffset(Long.parseLong(words[3]), LogStartOffsetIncrementReason.ClientRecordDeletion);
        StringBuilder said = new StringBuilder(Long.toString(log.logEndOffset()));
        for (LogSegment segment : log.logSegments()) {
            said.append(' ').append(segment.baseOffset()).append(':').append(segment.size()).append(':')
                .append(segment.largestTimestamp());
        }
        log.deleteOldSegments();
        String left = log.logSegments().stream().map(segment -> Long.toString(segment.baseOffset()))
            .collect(Collectors.joining(" "));
        log.closeHandlers();
        return said + " | " + left;
    }
}
