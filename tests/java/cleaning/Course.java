import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.TimeZone;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MappedFileQueue;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.logfile.MappedFile;

/**
 * What the broker's own cleaning does to a store in days of a driven clock, pass by pass.
 *
 * <pre>java -cp JARS Course WORK SCENARIO.json … &gt; COURSES.jsonl</pre>
 *
 * The store is a real {@code DefaultMessageStore} that was never started: this program calls its pass each
 * {@code cleanResourceInterval}. Its commitlog has real files of 4 KiB with real mtimes, and each stands for one of
 * {@code segment_bytes}. Between two passes producers send at the scenario's rate, while the store's own flags let
 * them. All that is on the driven disk is {@code other_bytes} and what was sent and not deleted.
 *
 * Prints one line a scenario:
 * <pre>{"name",
 *  "deletions": [[at, files, files younger than fileReservedTime, time is up, disk above a level, at once], …],
 *  "refused": [[from, until], …],
 *  "highest": [at, used bytes, age of the oldest message in ms],
 *  "hours": [[used bytes, percent as the broker sees it, age of the oldest message in ms], …]}</pre>
 * Moments are those at which a pass began, in milliseconds since the start; a refused span that goes on ends with
 * null. An hour is looked at before its pass. The highest level is that before a pass, or at an hour.
 */
public final class Course {
    private static final int FILE_BYTES = 4096;
    private static final long HOUR_MS = 3_600_000;
    /** Within one the rate stays. */
    private static final long QUARTER_MS = 900_000;

    private final JSONObject scenario;
    private final long startMs;
    private final long segmentBytes;
    private final long otherBytes;
    private final ZoneId zone;
    private final MessageStoreConfig config;
    private final DefaultMessageStore store;
    private final MappedFileQueue queue;
    private final Object cleaning;
    private final Path commitLog;

    /** To the store, what it deleted included; from offset 0. */
    private long writtenBytes;
    /** The moment before the first message of each file, deleted ones included. */
    private final List<Long> begunMs = new ArrayList<>();
    private long sentUntilMs;
    private boolean accepted = true;

    private final JSONArray deletions = new JSONArray();
    private final JSONArray refused = new JSONArray();
    private final JSONArray hours = new JSONArray();
    private JSONArray highest;

    private Course(JSONObject scenario, Path work) throws Exception {
        this.scenario = scenario;
        startMs = scenario.getLongValue("start_ms");
        segmentBytes = scenario.getLongValue("segment_bytes");
        otherBytes = scenario.getLongValue("other_bytes");
        zone = ZoneId.of(scenario.getString("time_zone"));
        TimeZone.setDefault(TimeZone.getTimeZone(zone));
        commitLog = work.resolve("commitlog");
        Files.createDirectories(commitLog);
        writeSegments(scenario.getJSONObject("segments"));
        Driven.nowMs = startMs;
        sentUntilMs = startMs;

        Properties properties = new Properties();
        properties.putAll(scenario.getJSONObject("settings"));
        properties.put("storePathRootDir", work.toString());
        properties.put("storePathCommitLog", commitLog.toString());
        properties.put("mappedFileSizeCommitLog", String.valueOf(FILE_BYTES));
        config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        store = new DefaultMessageStore(config, null, null, new BrokerConfig(), new ConcurrentHashMap<>());
        queue = (MappedFileQueue) field(CommitLog.class, "mappedFileQueue").get(store.getCommitLog());
        // A thread that makes the next two files beforehand; nobody started it.
        field(MappedFileQueue.class, "allocateMappedFileService").set(queue, null);
        cleaning = field(DefaultMessageStore.class, "cleanCommitLogService").get(store);
        if (!store.getCommitLog().load()) {
            throw new IOException("The store's commitlog can't be loaded: " + commitLog);
        }
        if (scenario.getBooleanValue("empty_last_file")) {
            queue.getLastMappedFile(0, true);
        }
        Driven.diskBytes = scenario.getLongValue("disk_bytes");
        Driven.usedBytes = this::usedBytes;
    }

    public static void main(String[] arguments) throws Exception {
        Driven.install();
        for (int i = 1; i < arguments.length; i++) {
            JSONObject scenario = JSON.parseObject(Files.readString(Path.of(arguments[i])));
            scenario.put("name", new File(arguments[i]).getName().replace(".json", ""));
            System.out.println(new Course(scenario, Path.of(arguments[0], scenario.getString("name"))).run());
        }
        System.exit(0);
    }

    private JSONObject run() throws Exception {
        long endMs = startMs + scenario.getLongValue("days") * 24 * HOUR_MS;
        int intervalMs = config.getCleanResourceInterval();
        // As an executor does at a fixed rate: a pass that is late begins as soon as the one before it has ended.
        for (long dueMs = startMs; Math.max(dueMs, Driven.nowMs) <= endMs; dueMs += intervalMs) {
            long atMs = Math.max(dueMs, Driven.nowMs);
            lookEachHour(atMs);
            send(atMs);
            keepHighest(atMs);
            Driven.nowMs = atMs;
            clean();
            boolean writeable = store.getRunningFlags().isWriteable();
            if (accepted && !writeable) {
                refused.add(JSONArray.of(atMs - startMs, null));
            } else if (writeable && !accepted) {
                refused.getJSONArray(refused.size() - 1).set(1, atMs - startMs);
            }
            accepted = writeable;
        }
        lookEachHour(endMs);
        for (MappedFile file : queue.getMappedFiles()) {
            file.destroy(0);
        }
        JSONObject course = new JSONObject();
        course.put("name", scenario.getString("name"));
        course.put("deletions", deletions);
        course.put("refused", refused);
        course.put("highest", highest);
        course.put("hours", hours);
        return course;
    }

    /** One pass, and what it did. */
    private void clean() throws Exception {
        // What the pass itself asks first, asked beforehand at the same clock and disk: for the record.
        // A pass that fails at the first question, which it says in the broker's log alone, asks no second one.
        Boolean timeIsUp = asked("isTimeToDelete");
        Boolean levelIsAbove = timeIsUp == null ? null : asked("isSpaceToDelete");
        boolean atOnce = field(cleaning.getClass(), "cleanImmediately").getBoolean(cleaning);
        long atMs = Driven.nowMs;
        List<MappedFile> before = List.copyOf(queue.getMappedFiles());
        long[] mtimesMs = mtimes(before, timeIsUp, levelIsAbove);
        method(DefaultMessageStore.class, "cleanFilesPeriodically").invoke(store);
        int gone = before.size() - queue.getMappedFiles().size();
        int young = 0;
        for (int i = 0; i < gone; i++) {
            if (new File(before.get(i).getFileName()).exists()) {
                throw new IOException("The broker gave a file up and left it: " + before.get(i).getFileName());
            }
            // It pauses between two files, and asks for the time at each.
            long judgedMs = atMs + i * (long) config.getDeleteCommitLogFilesInterval();
            young += mtimesMs[i] + config.getFileReservedTime() * HOUR_MS > judgedMs ? 1 : 0;
        }
        if (gone > 0) {
            boolean forced = atOnce && config.isCleanFileForciblyEnable();
            deletions.add(JSONArray.of(atMs - startMs, gone, young, timeIsUp ? 1 : 0, levelIsAbove ? 1 : 0, forced ? 1 : 0));
        }
    }

    /** Null where it fails. */
    private Boolean asked(String name) throws ReflectiveOperationException {
        try {
            return (Boolean) method(cleaning.getClass(), name).invoke(cleaning);
        } catch (InvocationTargetException error) {
            return null;
        }
    }

    private void keepHighest(long atMs) {
        if (highest == null || usedBytes() > highest.getLongValue(1)) {
            highest = JSONArray.of(atMs - startMs, usedBytes(), atMs - begunMs.get((int) oldest()));
        }
    }

    private void lookEachHour(long untilMs) throws IOException {
        for (long atMs = startMs + hours.size() * HOUR_MS; atMs <= untilMs; atMs += HOUR_MS) {
            send(atMs);
            keepHighest(atMs);
            double level = UtilAll.getDiskPartitionSpaceUsedPercent(commitLog.toString());
            hours.add(JSONArray.of(usedBytes(), Math.round(level * 100), atMs - begunMs.get((int) oldest())));
        }
    }

    /** Of the first files only: no pass takes more than its limit. */
    private long[] mtimes(List<MappedFile> files, Boolean... asked) {
        int most = Arrays.asList(asked).contains(true) ? Math.min(files.size(), Math.max(1, config.getDeleteFileBatchMax())) : 0;
        long[] found = new long[most];
        for (int i = 0; i < most; i++) {
            found[i] = files.get(i).getLastModifiedTimestamp();
        }
        return found;
    }

    private long usedBytes() {
        return otherBytes + writtenBytes - oldest() * segmentBytes;
    }

    private long oldest() {
        return store.getCommitLog().getMinOffset() / FILE_BYTES;
    }

    /** Full files, each sealed {@code every_ms} before the next, and the last {@code last_after_ms} after the start. */
    private void writeSegments(JSONObject segments) throws IOException {
        int count = segments.getIntValue("count");
        long everyMs = segments.getLongValue("every_ms");
        long lastMs = startMs + segments.getLongValue("last_after_ms");
        for (int i = 0; i < count; i++) {
            File file = commitLog.resolve(UtilAll.offset2FileName((long) i * FILE_BYTES)).toFile();
            try (RandomAccessFile made = new RandomAccessFile(file, "rw")) {
                made.setLength(FILE_BYTES);
            }
            begunMs.add(lastMs - (count - i) * everyMs);
            setMtime(file, lastMs - (count - 1 - i) * everyMs);
        }
        begunMs.add(lastMs);
        writtenBytes = count * segmentBytes;
    }

    /** Producers send until a moment, as far as it is accepted. */
    private void send(long untilMs) throws IOException {
        while (sentUntilMs < untilMs) {
            long quarterMs = sentUntilMs - sentUntilMs % QUARTER_MS;
            long pieceEndMs = Math.min(untilMs, quarterMs + QUARTER_MS);
            if (accepted) {
                send(quarterMs, pieceEndMs);
            }
            sentUntilMs = pieceEndMs;
        }
    }

    /** Producers send at one rate, in whole bytes since the quarter of an hour began. A full file is sealed. */
    private void send(long quarterMs, long untilMs) throws IOException {
        long bytesPerHour = bytesPerHour(quarterMs);
        long sentBytes = Math.multiplyExact(bytesPerHour, sentUntilMs - quarterMs) / HOUR_MS;
        long before = writtenBytes;
        long untilBytes = before + Math.multiplyExact(bytesPerHour, untilMs - quarterMs) / HOUR_MS - sentBytes;
        while (writtenBytes < untilBytes) {
            // Where the last one is full, this makes the next.
            MappedFile last = queue.getLastMappedFile(0, true);
            long endBytes = (last.getFileFromOffset() / FILE_BYTES + 1) * segmentBytes;
            if (untilBytes >= endBytes) {
                long units = Math.multiplyExact(sentBytes + endBytes - before, HOUR_MS);
                long atMs = quarterMs + (units + bytesPerHour - 1) / bytesPerHour;
                last.setWrotePosition(FILE_BYTES);
                setMtime(new File(last.getFileName()), atMs);
                begunMs.add(atMs);
            }
            writtenBytes = Math.min(untilBytes, endBytes);
        }
    }

    private static void setMtime(File file, long atMs) throws IOException {
        if (!file.setLastModified(atMs) || file.lastModified() != atMs) {
            throw new IOException("The mtime of " + file + " can't be set to " + atMs);
        }
    }

    /** By the hour of the day, and by the days since the start. */
    private long bytesPerHour(long quarterMs) {
        JSONArray profile = scenario.getJSONArray("profile");
        long day = Math.max(quarterMs - startMs, 0) / (24 * HOUR_MS);
        double dayBytes = scenario.getLongValue("bytes_per_day") * Math.pow(1 + scenario.getDoubleValue("growth_per_day"), day);
        double weights = 0;
        for (int hour = 0; hour < profile.size(); hour++) {
            weights += profile.getDoubleValue(hour);
        }
        int hour = Instant.ofEpochMilli(quarterMs).atZone(zone).getHour();
        return (long) (dayBytes * profile.getDoubleValue(hour) / weights);
    }

    private static Field field(Class<?> owner, String name) throws NoSuchFieldException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    private static Method method(Class<?> owner, String name) throws NoSuchMethodException {
        Method method = owner.getDeclaredMethod(name);
        method.setAccessible(true);
        return method;
    }
}
