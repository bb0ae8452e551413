import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.CommitLogDispatcher;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/**
 * The broker's own message store, driven by a test.
 *
 * <pre>java -cp JARS MessageStores write CONF MESSAGES stop|kill
 *java -cp JARS MessageStores recover CONF …</pre>
 *
 * CONF is a broker.conf; its {@code batchTopics}, joined by commas, have batch consume queues.
 *
 * What it prints begins with {@code >}; the broker's classes log on the same stream.
 *
 * <ul>
 * <li>{@code write} puts the messages of a file, one a line, into the store and prints what became of each:
 *     {@code STATUS physical-offset size queue-offset}. A line has, between tabs: one or batch, topic, queue id, flag,
 *     system flag, born timestamp, born host, port, store host, port, reconsume times, prepared transaction offset,
 *     and body and properties in hex. At last it stops the store, or ends at once.
 * <li>{@code measure CONF THREADS BODY-BYTES SECONDS} puts messages of that size into a new store from so many threads,
 *     and prints how many a second, after half as long that isn't counted.
 * <li>{@code reput CONF} loads a store without queues whose broker crashed, which gives each message its entries, and
 *     prints how many seconds it takes.
 * <li>{@code recover} loads each store and prints {@code CONF loaded max-offset topic/queue=next-offset …}.
 * </ul>
 */
public final class MessageStores {
    private static final HexFormat HEX = HexFormat.of();

    private MessageStores() {
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("write")) {
            write(Path.of(arguments[1]), Path.of(arguments[2]), arguments[3].equals("stop"));
        } else if (arguments[0].equals("measure")) {
            measure(Path.of(arguments[1]), Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]),
                Double.parseDouble(arguments[4]));
        } else if (arguments[0].equals("reput")) {
            reput(Path.of(arguments[1]));
        } else {
            for (int i = 1; i < arguments.length; i++) {
                recover(Path.of(arguments[i]));
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void write(Path conf, Path messages, boolean stops) throws Exception {
        DefaultMessageStore store = store(conf);
        if (!store.load()) {
            throw new IllegalStateException("can't load " + conf);
        }
        store.start();
        for (String line : Files.readAllLines(messages)) {
            String[] parts = line.split("\t", -1);
            boolean batch = parts[0].equals("batch");
            MessageExtBrokerInner message = message(batch ? new MessageExtBatch() : new MessageExtBrokerInner(), parts);
            PutMessageResult result =
                batch ? store.putMessages((MessageExtBatch) message) : store.putMessage(message);
            System.out.println("> " + result.getPutMessageStatus() + (result.getAppendMessageResult() == null ? ""
                : " " + result.getAppendMessageResult().getWroteOffset()
                + " " + result.getAppendMessageResult().getWroteBytes()
                + " " + result.getAppendMessageResult().getLogicsOffset()));
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        if (stops) {
            store.shutdown();
        }
    }

    private static void measure(Path conf, int threads, int bodyBytes, double seconds) throws Exception {
        DefaultMessageStore store = store(conf);
        store.load();
        store.start();
        byte[] body = new byte[bodyBytes];
        new Random(1).nextBytes(body);
        String line = String.join("\t", "one", "orders", "0", "0", "0", "1", "127.0.0.1", "1", "127.0.0.1", "2", "0", "0",
            HEX.formatHex(body), HEX.formatHex("KEYS\u0001key\u0002TAGS\u0001tag\u0002WAIT\u0001true\u0002".getBytes()));
        AtomicLong counted = new AtomicLong();
        long begin = System.nanoTime() + (long) (seconds * 0.5e9);
        long end = begin + (long) (seconds * 1e9);
        Thread[] producers = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            String queue = String.valueOf(i);
            producers[i] = new Thread(() -> {
                try {
                    String[] parts = line.split("\t", -1);
                    parts[2] = queue;
                    MessageExtBrokerInner message = message(new MessageExtBrokerInner(), parts);
                    for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
                        if (!store.putMessage(message).isOk()) {
                            throw new IllegalStateException("a put failed");
                        }
                        if (now >= begin) {
                            counted.incrementAndGet();
                        }
                    }
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
            });
            producers[i].start();
        }
        for (Thread producer : producers) {
            producer.join();
        }
        System.out.println("> " + counted.get() / seconds);
    }

    private static void reput(Path conf) throws Exception {
        DefaultMessageStore store = store(conf);
        long begin = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("can't load " + conf);
        }
        System.out.println("> " + (System.nanoTime() - begin) / 1e9);
    }

    private static MessageExtBrokerInner message(MessageExtBrokerInner message, String[] parts) throws Exception {
        String properties = new String(HEX.parseHex(parts[13]), StandardCharsets.UTF_8);
        message.setTopic(parts[1]);
        message.setQueueId(Integer.parseInt(parts[2]));
        message.setFlag(Integer.parseInt(parts[3]));
        message.setSysFlag(Integer.parseInt(parts[4]));
        message.setBornTimestamp(Long.parseLong(parts[5]));
        message.setBornHost(host(parts[6], parts[7]));
        message.setStoreHost(host(parts[8], parts[9]));
        message.setReconsumeTimes(Integer.parseInt(parts[10]));
        message.setPreparedTransactionOffset(Long.parseLong(parts[11]));
        message.setBody(HEX.parseHex(parts[12]));
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
        message.setPropertiesString(properties);
        return message;
    }

    private static InetSocketAddress host(String address, String port) throws Exception {
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(port));
    }

    private static void recover(Path conf) throws Exception {
        DefaultMessageStore store = store(conf);
        boolean loaded = store.load();
        TreeMap<String, Long> queues = new TreeMap<>();
        for (ConcurrentMap<Integer, ConsumeQueueInterface> topic : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : topic.values()) {
                queues.put(queue.getTopic() + "/" + queue.getQueueId(), queue.getMaxOffsetInQueue());
            }
        }
        StringBuilder line = new StringBuilder(conf + "\t" + loaded + "\t" + store.getMaxPhyOffset());
        for (Map.Entry<String, Long> queue : queues.entrySet()) {
            line.append('\t').append(queue.getKey()).append('=').append(queue.getValue());
        }
        System.out.println("> " + line);
    }

    private static DefaultMessageStore store(Path conf) throws Exception {
        Properties properties = new Properties();
        properties.load(Files.newInputStream(conf));
        MessageStoreConfig config = new MessageStoreConfig();
        config.setHaListenPort(0);
        MixAll.properties2Object(properties, config);
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String topic : properties.getProperty("batchTopics", "").split(",")) {
            TopicConfig batch = new TopicConfig(topic);
            batch.setAttributes(Map.of("queue.type", "BatchCQ"));
            topics.put(topic, batch);
        }
        return new UnmergedIndex(config, topics);
    }

    /**
     * A store that begins no two index files in one millisecond. By that time a file is named, so that the broker
     * would write the second one over the first.
     */
    private static final class UnmergedIndex extends DefaultMessageStore implements CommitLogDispatcher {
        private long indexBytes;

        UnmergedIndex(MessageStoreConfig config, ConcurrentMap<String, TopicConfig> topics) throws IOException {
            super(config, null, null, new BrokerConfig(), topics);
            addDispatcher(this);
        }

        @Override
        public void dispatch(DispatchRequest request) {
            if (indexService.getTotalSize() != indexBytes) {
                indexBytes = indexService.getTotalSize();
                long begunMs = System.currentTimeMillis();
                while (System.currentTimeMillis() == begunMs) {
                    Thread.onSpinWait();
                }
            }
        }
    }
}
