import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Utils;

/**
 * Reads every batch of a segment with its CRC, and every record, again and again on one thread.
 * Arguments: file, rounds, "views" (records are looked at and dropped) or "keep" (keys and values are kept as
 * arrays, like a consumer's ByteArrayDeserializer does, until the next 16 MiB). Prints a line a round:
 * nanoseconds of this thread's processor time and on the clock, records, bytes of keys and values.
 */
public final class ReadSegment {

    private static final int KEPT_BYTES = 16 << 20;

    private ReadSegment() {
    }

    public static void main(String[] args) throws IOException {
        boolean keep = args[2].equals("keep");
        try (FileChannel channel = FileChannel.open(Path.of(args[0]), StandardOpenOption.READ)) {
            ByteBuffer segment = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            for (int round = 0; round < Integer.parseInt(args[1]); round++) {
                read(segment.duplicate(), keep);
            }
        }
    }

    private static void read(ByteBuffer segment, boolean keep) {
        List<byte[]> kept = new ArrayList<>();
        long cpuBegan = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long began = System.nanoTime();
        long records = 0;
        long bytes = 0;
        long keptUntil = KEPT_BYTES;
        long times = 0;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(segment).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                records++;
                times += record.timestamp() + record.offset();
                if (keep) {
                    byte[] key = Utils.toNullableArray(record.key());
                    byte[] value = Utils.toNullableArray(record.value());
                    kept.add(key);
                    kept.add(value);
                    bytes += key.length + value.length;
                } else {
                    bytes += record.key().remaining() + record.value().remaining();
                }
            }
            if (bytes > keptUntil) {
                kept = new ArrayList<>();
                keptUntil = bytes + KEPT_BYTES;
            }
        }
        long took = System.nanoTime() - began;
        long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpuBegan;
        if (times == 0) {
            throw new IllegalStateException("nothing read");
        }
        System.out.println(cpu + " " + took + " " + records + " " + bytes);
    }
}
