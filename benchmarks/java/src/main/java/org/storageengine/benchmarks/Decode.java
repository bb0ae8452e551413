package org.storageengine.benchmarks;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Decodes every message of a commitlog segment with body and CRC check, again and again on one thread.
 * Prints a line a round: nanoseconds on the clock, nanoseconds of this thread's processor time, messages, bytes.
 */
public final class Decode {

    private static final int BLANK_MAGIC = 0xCBD43194;

    private Decode() {
    }

    public static void main(String[] args) throws IOException {
        int rounds = Integer.parseInt(args[1]);
        try (FileChannel channel = FileChannel.open(Path.of(args[0]), StandardOpenOption.READ)) {
            MappedByteBuffer segment = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            for (int round = 0; round < rounds; round++) {
                decodeAll(segment);
            }
        }
    }

    private static void decodeAll(MappedByteBuffer segment) {
        ByteBuffer buffer = segment.duplicate();
        long began = System.nanoTime();
        long cpuBegan = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long messages = 0;
        long seen = 0;
        while (buffer.remaining() >= 8) {
            int position = buffer.position();
            if (buffer.getInt(position) <= 0 || buffer.getInt(position + 4) == BLANK_MAGIC) {
                break;
            }
            MessageExt message = MessageDecoder.decode(buffer, true, true, false, false, true);
            if (message == null) {
                throw new IllegalStateException("no message at " + position);
            }
            messages++;
            seen += message.getBody() == null ? 0 : message.getBody().length;
            seen += message.getProperties() == null ? 0 : message.getProperties().size();
        }
        long took = System.nanoTime() - began;
        long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpuBegan;
        if (seen == 0 && messages > 0) {
            throw new IllegalStateException("nothing decoded");
        }
        System.out.println(took + " " + cpu + " " + messages + " " + buffer.position());
    }
}
