import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

/** Reads batches by Kafka's own classes: a length and a batch in, a length and its records or an error out. */
public final class ReadBatches {
    /** Stands where the number of records would: they can't be read, and the reason follows. */
    private static final int REFUSED = -1;

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));
        while (true) {
            int size;
            try {
                size = in.readInt();
            } catch (EOFException e) {
                break;
            }
            byte[] batch = new byte[size];
            in.readFully(batch);
            byte[] answer = answer(batch);
            out.writeInt(answer.length);
            out.write(answer);
            // Whoever sends many waits for the answer to the last one.
            if (in.available() == 0)
                out.flush();
        }
        out.flush();
    }

    private static byte[] answer(byte[] bytes) throws IOException {
        ByteArrayOutputStream answer = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(answer);
        try {
            ByteArrayOutputStream records = new ByteArrayOutputStream();
            int count = 0;
            for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    write(record, new DataOutputStream(records));
                    count++;
                }
            }
            out.writeInt(count);
            records.writeTo(out);
        } catch (Exception | Error e) {
            answer.reset();
            out.writeInt(REFUSED);
            out.write(e.toString().getBytes("UTF-8"));
        }
        return answer.toByteArray();
    }

    private static void write(Record record, DataOutputStream out) throws IOException {
        out.writeLong(record.offset());
        out.writeLong(record.timestamp());
        write(record.key(), out);
        write(record.value(), out);
        out.writeInt(record.headers().length);
        for (Header header : record.headers()) {
            write(ByteBuffer.wrap(header.key().getBytes("UTF-8")), out);
            write(header.value() == null ? null : ByteBuffer.wrap(header.value()), out);
        }
    }

    private static void write(ByteBuffer content, DataOutputStream out) throws IOException {
        if (content == null) {
            out.writeInt(-1);
            return;
        }
        byte[] bytes = new byte[content.remaining()];
        content.get(bytes);
        out.writeInt(bytes.length);
        out.write(bytes);
    }
}
