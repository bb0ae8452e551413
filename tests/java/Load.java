import java.io.IOException;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Producers and consumers of one broker, that write down what became of each message.
 *
 * <pre>java -cp JARS Load.java name-server=127.0.0.1:9876 record=FILE topics=a,b group=fast group=slow@20 …</pre>
 *
 * <ul>
 * <li>{@code topics}: sent to in turn; with {@code broker=HOST:PORT} they are made first, with {@code queues} each.
 * <li>{@code threads} producers send {@code rate} messages a second together (0: as fast as they can), of
 *     {@code body-bytes} random bytes each, one at a time, never again when one fails; {@code seed} sets the bytes.
 * <li>{@code group=NAME} pulls all topics from their first message on and commits; {@code group=NAME@RATE} takes no
 *     more than so many messages a second, and so lags behind. May be given several times.
 * </ul>
 *
 * It says {@code ready} when the first message is sent, runs until its standard input is closed, ends its standard
 * output with the summary, and leaves in FILE one JSON object a line:
 * <ul>
 * <li>{@code {"sent": topic, "queue", "queueOffset", "physicalOffset", "sha256", "atMs", "micros"}}: the broker has it;
 *     atMs is when it was sent, micros how long the broker took to say so.
 * <li>{@code {"failed": topic, "queue", "sha256", "atMs", "micros", "error"}}: nobody knows whether it has it.
 * <li>{@code {"moved": group, "topic", "queue", "from", "to", "atMs"}}: a pull found its offset gone.
 * <li>{@code {"pullFailed": group, "topic", "queue", "offset", "atMs", "error"}}.
 * <li>{@code {"summary": {"sent", "failed", "microsP50", "microsP99", "microsMax", "groups":
 *     {name: {"pulled", "moved", "failed"}}}}}: the last line.
 * </ul>
 */
public class Load {
    private static final int SEND_TIMEOUT_MS = 60_000;
    private static final int PULL_BATCH = 32;
    private static final int PAUSE_MS = 50;

    private final Map<String, String> options = new HashMap<>();
    private final List<String> groups = new ArrayList<>();
    private final Writer record;
    private final List<Long> latencies = new ArrayList<>();
    private final AtomicLong failed = new AtomicLong();
    private volatile boolean ends;
    private boolean said;

    Load(String[] arguments) throws IOException {
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            if (parts[0].equals("group")) {
                groups.add(parts[1]);
            } else {
                options.put(parts[0], parts[1]);
            }
        }
        record = Files.newBufferedWriter(Path.of(options.get("record")), StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        new Load(arguments).run();
        System.exit(0);
    }

    private int number(String option, int otherwise) {
        return Integer.parseInt(options.getOrDefault(option, String.valueOf(otherwise)));
    }

    void run() throws Exception {
        String nameServer = options.get("name-server");
        List<String> topics = Arrays.asList(options.get("topics").split(","));
        if (options.containsKey("broker")) {
            create(nameServer, topics);
        }
        DefaultMQProducer producer = new DefaultMQProducer("load-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("load-producers");
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        List<MessageQueue> queues = queues(producer, topics);
        List<Thread> threads = new ArrayList<>();
        int count = number("threads", 2);
        for (int i = 0; i < count; i++) {
            int number = i;
            threads.add(start(() -> send(producer, queues, number, count)));
        }
        Map<String, Group> consumers = new LinkedHashMap<>();
        for (String text : groups) {
            String[] parts = text.split("@", 2);
            Group group = new Group(parts[0], parts.length > 1 ? Integer.parseInt(parts[1]) : 0);
            consumers.put(parts[0], group);
            threads.add(start(() -> group.consume(nameServer, queues)));
        }
        while (System.in.read() >= 0) {
            continue;
        }
        ends = true;
        for (Thread thread : threads) {
            thread.join();
        }
        String summary = summary(consumers);
        line(summary);
        record.close();
        System.out.println(summary);
    }

    private Thread start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        });
        thread.start();
        return thread;
    }

    private interface Work {
        void run() throws Exception;
    }

    private void create(String nameServer, List<String> topics) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("load-admin");
        admin.start();
        int queues = number("queues", 4);
        for (String topic : topics) {
            admin.createAndUpdateTopicConfig(options.get("broker"), new TopicConfig(topic, queues, queues));
        }
        admin.shutdown();
    }

    /** Of all topics, as soon as the name server knows them. */
    private List<MessageQueue> queues(DefaultMQProducer producer, List<String> topics) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        for (String topic : topics) {
            while (true) {
                try {
                    queues.addAll(producer.fetchPublishMessageQueues(topic));
                    break;
                } catch (Exception error) {
                    if (System.nanoTime() > deadline) {
                        throw error;
                    }
                    Thread.sleep(PAUSE_MS);
                }
            }
        }
        return queues;
    }

    private void send(DefaultMQProducer producer, List<MessageQueue> queues, int number, int count) throws Exception {
        int rate = number("rate", 100);
        int bodyBytes = number("body-bytes", 1000);
        Random random = new Random(number("seed", 0) * 1000L + number);
        MessageDigest sha256 = MessageDigest.getInstance("SHA-256");
        long intervalNanos = rate == 0 ? 0 : TimeUnit.SECONDS.toNanos(count) / rate;
        long next = System.nanoTime() + intervalNanos * number / count;
        for (int turn = number; !ends; turn += count) {
            for (long wait = next - System.nanoTime(); wait > 0 && rate > 0; wait = next - System.nanoTime()) {
                TimeUnit.NANOSECONDS.sleep(wait);
            }
            next += intervalNanos;
            MessageQueue queue = queues.get(turn % queues.size());
            byte[] body = new byte[bodyBytes];
            random.nextBytes(body);
            String hash = HexFormat.of().formatHex(sha256.digest(body));
            long atMs = System.currentTimeMillis();
            long began = System.nanoTime();
            try {
                SendResult result = producer.send(new Message(queue.getTopic(), body), queue, SEND_TIMEOUT_MS);
                long micros = (System.nanoTime() - began) / 1000;
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IOException(result.getSendStatus().toString());
                }
                long at = MessageDecoder.decodeMessageId(result.getOffsetMsgId()).getOffset();
                sent(queue, result.getQueueOffset(), at, hash, atMs, micros);
            } catch (Exception error) {
                failed.incrementAndGet();
                line(String.format(
                    "{\"failed\": %s, \"queue\": %d, \"sha256\": \"%s\", \"atMs\": %d, \"micros\": %d, \"error\": %s}",
                    json(queue.getTopic()), queue.getQueueId(), hash, atMs, (System.nanoTime() - began) / 1000,
                    json(error.toString())));
                Thread.sleep(PAUSE_MS);
                next = Math.max(next, System.nanoTime());
            }
        }
    }

    private void sent(MessageQueue queue, long queueOffset, long at, String hash, long atMs, long micros)
        throws IOException {
        String text = String.format(
            "{\"sent\": %s, \"queue\": %d, \"queueOffset\": %d, \"physicalOffset\": %d, \"sha256\": \"%s\", "
                + "\"atMs\": %d, \"micros\": %d}",
            json(queue.getTopic()), queue.getQueueId(), queueOffset, at, hash, atMs, micros);
        synchronized (record) {
            latencies.add(micros);
            line(text);
            if (!said) {
                System.out.println("ready");
                said = true;
            }
        }
    }

    private void line(String text) throws IOException {
        synchronized (record) {
            record.write(text);
            record.write('\n');
            record.flush();
        }
    }

    private String summary(Map<String, Group> consumers) {
        long[] micros = latencies.stream().mapToLong(Long::longValue).sorted().toArray();
        StringBuilder text = new StringBuilder();
        consumers.forEach((name, group) -> text.append(text.length() == 0 ? "" : ", ").append(String.format(
            "%s: {\"pulled\": %d, \"moved\": %d, \"failed\": %d}", json(name), group.pulled, group.moved, group.failures)));
        return String.format(
            "{\"summary\": {\"sent\": %d, \"failed\": %d, \"microsP50\": %d, \"microsP99\": %d, \"microsMax\": %d, "
                + "\"groups\": {%s}}}",
            micros.length, failed.get(), at(micros, 0.5), at(micros, 0.99), at(micros, 1.0), text);
    }

    private static long at(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, (long) (sorted.length * share))];
    }

    private static String json(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            quoted.append(one < ' ' || one == '"' || one == '\\' ? String.format("\\u%04x", (int) one) : one);
        }
        return quoted.append('"').toString();
    }

    /** One consumer group: pulls all queues in turn, from their first message on, and commits how far it is. */
    private class Group {
        private final String name;
        private final int rate;
        private long pulled;
        private long moved;
        private long failures;

        Group(String name, int rate) {
            this.name = name;
            this.rate = rate;
        }

        void consume(String nameServer, List<MessageQueue> queues) throws Exception {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(name);
            consumer.setNamesrvAddr(nameServer);
            consumer.setInstanceName("load-" + name);
            consumer.start();
            OffsetStore committed = consumer.getDefaultMQPullConsumerImpl().getOffsetStore();
            Map<MessageQueue, Long> next = new HashMap<>();
            long began = System.nanoTime();
            while (!ends) {
                boolean found = false;
                for (MessageQueue queue : queues) {
                    long allowed = rate * TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began) / 1000;
                    if (ends || (rate > 0 && pulled >= allowed)) {
                        break;
                    }
                    found |= pull(consumer, committed, queue, next);
                }
                if (!found) {
                    Thread.sleep(PAUSE_MS);
                }
            }
            consumer.shutdown();
        }

        private boolean pull(
            DefaultMQPullConsumer consumer, OffsetStore committed, MessageQueue queue, Map<MessageQueue, Long> next)
            throws Exception {
            long offset = next.getOrDefault(queue, 0L);
            try {
                PullResult result = consumer.pull(queue, "*", offset, rate == 0 ? PULL_BATCH : 1);
                if (result.getPullStatus() == PullStatus.OFFSET_ILLEGAL) {
                    moved++;
                    line(String.format(
                        "{\"moved\": %s, \"topic\": %s, \"queue\": %d, \"from\": %d, \"to\": %d, \"atMs\": %d}",
                        json(name), json(queue.getTopic()), queue.getQueueId(), offset, result.getNextBeginOffset(),
                        System.currentTimeMillis()));
                }
                if (result.getPullStatus() == PullStatus.FOUND) {
                    pulled += result.getMsgFoundList().size();
                }
                if (result.getNextBeginOffset() != offset) {
                    committed.updateConsumeOffsetToBroker(queue, result.getNextBeginOffset(), false);
                    next.put(queue, result.getNextBeginOffset());
                }
                return result.getPullStatus() == PullStatus.FOUND;
            } catch (Exception error) {
                failures++;
                line(String.format(
                    "{\"pullFailed\": %s, \"topic\": %s, \"queue\": %d, \"offset\": %d, \"atMs\": %d, \"error\": %s}",
                    json(name), json(queue.getTopic()), queue.getQueueId(), offset, System.currentTimeMillis(),
                    json(error.toString())));
                Thread.sleep(PAUSE_MS);
                return false;
            }
        }
    }
}
