import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.TimeZone;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/**
 * What the broker's own cleaning leaves of a whole store, pass by pass, with clock and disk driven.
 *
 * <pre>java -cp JARS Passes CONF PASSES.json &gt; LEFT.jsonl</pre>
 *
 * A pass is {@code {"at": ms, "used": percent, "manual": flag, "hold": offset, "give_back": flag}}: the clock's
 * moment, the disk's level, whether a person asks, and an offset of the log that a reader takes before it, or that the
 * reader gives back. Each prints, behind a {@code >}, {@code {"log": [names], "queues": {directory: [names]},
 * "index": [names], "minima": {topic/queue: min offset}, "min": offset, "writeable": flag}} as it is after.
 */
public final class Passes {
    private static final long DISK_BYTES = 1_000_000;

    private Passes() {
    }

    public static void main(String[] arguments) throws Exception {
        Driven.install();
        TimeZone.setDefault(TimeZone.getTimeZone("UTC"));
        run(Path.of(arguments[0]), JSON.parseArray(Files.readString(Path.of(arguments[1]))));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(Path conf, JSONArray passes) throws Exception {
        Properties properties = new Properties();
        try (var reader = Files.newBufferedReader(conf)) {
            properties.load(reader);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String topic : properties.getProperty("batchTopics", "").split(",")) {
            TopicConfig found = new TopicConfig(topic);
            found.setAttributes(Map.of("queue.type", "BatchCQ"));
            topics.put(topic, found);
        }
        Driven.diskBytes = DISK_BYTES;
        Driven.nowMs = passes.getJSONObject(0).getLongValue("at");
        DefaultMessageStore store = new DefaultMessageStore(config, null, null, new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IOException("can't load " + conf);
        }
        Method log = method("cleanFilesPeriodically");
        Method queues = method("cleanQueueFilesPeriodically");
        SelectMappedBufferResult held = null;
        for (int i = 0; i < passes.size(); i++) {
            JSONObject pass = passes.getJSONObject(i);
            Driven.nowMs = pass.getLongValue("at");
            Driven.usedBytes = () -> DISK_BYTES / 100 * pass.getLongValue("used");
            if (pass.getBooleanValue("manual")) {
                store.executeDeleteFilesManually();
            }
            if (pass.getBooleanValue("give_back") && held != null) {
                held.release();
                held = null;
            }
            if (pass.containsKey("hold") && held == null) {
                held = store.getCommitLog().getData(pass.getLongValue("hold"));
            }
            log.invoke(store);
            queues.invoke(store);
            System.out.println("> " + left(store, Path.of(config.getStorePathRootDir())));
        }
    }

    private static JSONObject left(DefaultMessageStore store, Path root) {
        JSONObject left = new JSONObject();
        left.put("log", names(root.resolve("commitlog")));
        JSONObject directories = new JSONObject();
        for (String kind : new String[] {"consumequeue", "consumequeue_ext", "batchconsumequeue"}) {
            for (File topic : listed(root.resolve(kind))) {
                for (File queue : listed(topic.toPath())) {
                    directories.put(kind + "/" + topic.getName() + "/" + queue.getName(), names(queue.toPath()));
                }
            }
        }
        left.put("queues", directories);
        left.put("index", names(root.resolve("index")));
        TreeMap<String, Long> minima = new TreeMap<>();
        for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                minima.put(queue.getTopic() + "/" + queue.getQueueId(), queue.getMinOffsetInQueue());
            }
        }
        left.put("minima", minima);
        left.put("min", store.getMinPhyOffset());
        left.put("writeable", store.getRunningFlags().isWriteable());
        return left;
    }

    private static String[] names(Path directory) {
        return Arrays.stream(listed(directory)).map(File::getName).sorted().toArray(String[]::new);
    }

    private static File[] listed(Path directory) {
        File[] found = directory.toFile().listFiles();
        return found == null ? new File[0] : found;
    }

    private static Method method(String name) throws NoSuchMethodException {
        Method method = DefaultMessageStore.class.getDeclaredMethod(name);
        method.setAccessible(true);
        return method;
    }
}
