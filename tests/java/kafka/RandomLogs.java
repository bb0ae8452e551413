import java.io.File;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Random;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;

import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;

/** Makes logs by chance, lets Kafka's own UnifiedLog#deleteOldSegments run on each, and prints a line of JSON. */
public final class RandomLogs {
    private static final long NOW = 1_790_000_000_000L;
    private static final long HOUR = 3_600_000L;
    private static final String[] POLICIES = {"delete", "delete", "delete", "delete", "delete", "compact", "compact,delete", ""};

    /** Arguments: an empty directory, a seed, the number of logs. */
    public static void main(String[] arguments) throws Exception {
        Random chance = new Random(Long.parseLong(arguments[1]));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++)
            out.println(line(new File(arguments[0], "topic-" + number), chance));
        out.flush();
        // Threads of the metrics library stay behind.
        Runtime.getRuntime().halt(0);
    }

    private static String line(File dir, Random chance) throws Exception {
        boolean remote = chance.nextInt(5) == 0;
        boolean copyDisabled = remote && chance.nextInt(4) == 0;
        Map<String, String> config = new HashMap<>();
        String policy = POLICIES[chance.nextInt(POLICIES.length)];
        long retentionMs = pick(chance, -1, 0, 1, HOUR, 5 * HOUR, 20 * HOUR, 200 * HOUR);
        long retentionBytes = pick(chance, -1, -1, -1, 0, 500, 2_000 + chance.nextInt(4_000), 100_000);
        long localMs = remote ? pick(chance, -2, -1, 0, HOUR, 10 * HOUR) : -2;
        long localBytes = remote ? pick(chance, -2, -1, 300, 2_000) : -2;
        config.put("cleanup.policy", policy);
        config.put("retention.ms", "" + retentionMs);
        config.put("retention.bytes", "" + retentionBytes);
        config.put("local.retention.ms", "" + localMs);
        config.put("local.retention.bytes", "" + localBytes);
        config.put("remote.storage.enable", "" + remote);
        config.put("remote.log.copy.disable", "" + copyDisabled);
        config.put("segment.index.bytes", "1024");

        long first = chance.nextInt(3) == 0 ? chance.nextInt(1_000) : 0;
        KafkaLog log = new KafkaLog(dir, new LogConfig(config), first, remote, scheduler(), new Stopped());
        int segments = 1 + chance.nextInt(9);
        for (int segment = 0; segment < segments; segment++) {
            long gap = segment > 0 && chance.nextInt(8) == 0 ? 1 + chance.nextInt(30) : 0;
            long next = log.end() + gap;
            if (segment > 0)
                log.roll(next);
            // Behind a gap, a segment without records would begin above the log's end.
            int batches = gap == 0 && chance.nextInt(8) == 0 ? 0 : 1 + chance.nextInt(4);
            for (int batch = 0; batch < batches; batch++)
                log.append(next + batch, timestamp(chance, segments - segment), new byte[chance.nextInt(600)]);
        }
        List<LogSegment> made = new ArrayList<>(log.segments());
        for (LogSegment segment : made)
            segment.log().file().setLastModified(NOW + pick(chance, -300, -30, -6, -2, 0, 3) * HOUR);
        List<Long> bases = new ArrayList<>();
        made.forEach(segment -> bases.add(segment.baseOffset()));
        log.highWatermark(chance.nextInt(3) > 0 ? log.end() : offset(chance, bases, log.end()));
        if (chance.nextInt(3) == 0)
            log.start(Math.min(offset(chance, bases, log.end()), log.highWatermark()));
        long highest = remote ? offset(chance, bases, log.end()) - 1 : -1;
        if (remote && chance.nextInt(3) > 0)
            highest = log.end() - 1;
        if (highest >= 0)
            log.highestRemote(highest);
        if (remote && chance.nextInt(3) == 0)
            log.localStart(Math.min(offset(chance, bases, log.end()), log.highWatermark()));

        StringBuilder line = new StringBuilder("{");
        line.append("\"version\":\"").append(AppInfoParser.getVersion()).append("\",\"now_ms\":").append(NOW).append(",\"policy\":\"").append(policy).append('"');
        line.append(",\"retention\":[").append(retentionMs).append(',').append(retentionBytes).append(',');
        line.append(localMs).append(',').append(localBytes).append(']');
        line.append(",\"remote\":").append(remote).append(",\"copy_disabled\":").append(copyDisabled);
        line.append(",\"high_watermark\":").append(log.highWatermark()).append(",\"start\":").append(log.start());
        line.append(",\"local_start\":").append(log.localStart()).append(",\"end\":").append(log.end());
        line.append(",\"highest_remote\":").append(highest).append(",\"segments\":[");
        for (LogSegment segment : made) {
            OptionalLong record = segment.largestRecordTimestamp();
            line.append(segment == made.get(0) ? "" : ",").append('[').append(segment.baseOffset()).append(',');
            line.append(segment.size()).append(',').append(record.isPresent() ? record.getAsLong() : -1);
            line.append(',').append(segment.lastModified()).append(']');
        }
        log.deleteOldSegments();
        line.append("],\"kept\":[");
        boolean more = false;
        for (LogSegment segment : log.segments()) {
            line.append(more ? "," : "").append(segment.baseOffset());
            more = true;
        }
        line.append("],\"new_start\":").append(log.start());
        return line.append(",\"new_local_start\":").append(log.localStart()).append('}').toString();
    }

    /** Mostly older in older segments; some have none, and some are in the future. */
    private static long timestamp(Random chance, int age) {
        switch (chance.nextInt(14)) {
            case 0: return -1;
            case 1: return chance.nextInt(3) == 0 ? NOW + HOUR : NOW - HOUR;
            case 2: return NOW - pick(chance, 0, 1, 2, HOUR - 1, HOUR, HOUR + 1);
            default: return NOW - age * 4 * HOUR - chance.nextInt((int) HOUR);
        }
    }

    /** The base of a segment, an offset near one, or the end. */
    private static long offset(Random chance, List<Long> bases, long end) {
        long base = chance.nextInt(5) == 0 ? end : bases.get(chance.nextInt(bases.size()));
        return Math.max(0, Math.min(end, base + chance.nextInt(3) - 1));
    }

    private static long pick(Random chance, long... values) {
        return values[chance.nextInt(values.length)];
    }

    /** Runs nothing: what was renamed stays so. */
    private static Scheduler scheduler() {
        ClassLoader loader = RandomLogs.class.getClassLoader();
        Object future = Proxy.newProxyInstance(loader, new Class<?>[] {ScheduledFuture.class}, (p, m, a) -> false);
        return (Scheduler) Proxy.newProxyInstance(loader, new Class<?>[] {Scheduler.class}, (proxy, method, given) ->
            method.getReturnType().isInstance(future) ? future : null);
    }

    /** A clock that stands still. */
    private static final class Stopped implements Time {
        @Override public long milliseconds() {
            return NOW;
        }

        @Override public long hiResClockMs() {
            return NOW;
        }

        @Override public long nanoseconds() {
            return NOW * 1_000_000;
        }

        @Override public void sleep(long ms) {
        }

        @Override public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        }

    }
}
