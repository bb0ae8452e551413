import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Random;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.TimestampType;

/**
 * Writes a segment of batches by Kafka's own builder.
 * Arguments: file, codec, bytes of a value, bytes of records in a batch (0: one record), bytes of records in all,
 * "text" (words in JSON) or "random".
 */
public final class WriteSegment {

    private static final int WORDS = 2000;
    private static final long FIRST_TIMESTAMP_MS = 1_790_000_000_000L;

    private final Random chance = new Random(7);
    private final byte[][] words = new byte[WORDS][];

    private WriteSegment() {
        for (int i = 0; i < WORDS; i++) {
            byte[] word = new byte[3 + chance.nextInt(8)];
            for (int k = 0; k < word.length; k++) {
                word[k] = (byte) ('a' + chance.nextInt(26));
            }
            words[i] = word;
        }
    }

    public static void main(String[] args) throws IOException {
        Compression compression = Compression.of(CompressionType.forName(args[1])).build();
        boolean text = args[5].equals("text");
        new WriteSegment().write(Path.of(args[0]), compression, Integer.parseInt(args[2]), Integer.parseInt(args[3]),
            Long.parseLong(args[4]), text);
    }

    private void write(Path file, Compression compression, int valueBytes, int batchBytes, long bytes, boolean text)
        throws IOException {
        long offset = 0;
        long written = 0;
        byte[] value = new byte[valueBytes];
        try (FileChannel channel =
                 FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            while (written < bytes) {
                MemoryRecordsBuilder builder = MemoryRecords.builder(
                    ByteBuffer.allocate(1 << 16), compression, TimestampType.CREATE_TIME, offset);
                long inBatch = 0;
                do {
                    fill(value, text);
                    byte[] key = ("key-" + offset % 100_000).getBytes(StandardCharsets.US_ASCII);
                    builder.appendWithOffset(offset, FIRST_TIMESTAMP_MS + offset, key, value);
                    offset++;
                    inBatch += valueBytes + key.length + 10;
                } while (inBatch < batchBytes);
                written += inBatch;
                channel.write(builder.build().buffer());
            }
        }
    }

    private void fill(byte[] value, boolean text) {
        if (!text) {
            chance.nextBytes(value);
            return;
        }
        int at = 0;
        byte[] name = "\",\"field\":\"".getBytes(StandardCharsets.US_ASCII);
        while (at < value.length) {
            byte[] part = chance.nextInt(4) == 0 ? name : words[chance.nextInt(WORDS)];
            int size = Math.min(part.length, value.length - at);
            System.arraycopy(part, 0, value, at, size);
            at += size;
            if (at < value.length) {
                value[at++] = chance.nextInt(3) == 0 ? (byte) ('0' + chance.nextInt(10)) : (byte) ' ';
            }
        }
    }
}
