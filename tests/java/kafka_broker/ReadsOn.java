import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.security.MessageDigest;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Prints each record that a consumer gets: partition, offset, time and the SHA-256 of key and value. */
public class ReadsOn {
    /** Arguments: bootstrap servers, isolation level, topic, group, its protocol. */
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", arguments[1]);
        settings.put("check.crcs", "true");
        settings.put("group.id", arguments[3]);
        settings.put("group.protocol", arguments[4]);
        settings.put("auto.offset.reset", "earliest");
        Class<?> bytes = ByteArrayDeserializer.class;
        settings.put("key.deserializer", bytes.getName());
        settings.put("value.deserializer", bytes.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo one : consumer.partitionsFor(arguments[2])) {
                partitions.add(new TopicPartition(one.topic(), one.partition()));
            }
            consumer.subscribe(List.of(arguments[2]));
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (!isDone(consumer, ends)) {
                for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(500))) {
                    String at = one.partition() + " " + one.offset() + " " + one.timestamp();
                    System.out.println(at + " " + digest(one.key()) + " " + digest(one.value()));
                }
            }
            consumer.commitSync();
        } catch (UnsupportedVersionException error) {
            System.out.println(error.getMessage());
        }
    }

    private static boolean isDone(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        if (consumer.assignment().size() < ends.size()) {
            return false;
        }
        for (Map.Entry<TopicPartition, Long> end : ends.entrySet()) {
            if (consumer.position(end.getKey()) < end.getValue()) {
                return false;
            }
        }
        return true;
    }

    private static String digest(byte[] data) throws Exception {
        if (data == null) {
            return "null";
        }
        byte[] sum = MessageDigest.getInstance("SHA-256").digest(data);
        return HexFormat.of().formatHex(sum, 0, 8);
    }
}
