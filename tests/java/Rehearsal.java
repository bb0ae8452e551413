import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * A name server, a broker and clients that run for a moment in one process: its classes are those that later
 * processes need at their start.
 *
 * <pre>java -XX:ArchiveClassesAtExit=FILE -cp JARS Rehearsal name-server.conf broker.conf [options of Load]</pre>
 */
public class Rehearsal {
    private static final int LASTS_MS = 1_000;

    public static void main(String[] arguments) {
        int status = 1;
        try {
            rehearse(arguments);
            status = 0;
        } catch (Exception error) {
            error.printStackTrace();
        }
        // What was written is thrown away: stopping a broker well takes 20 s.
        Runtime.getRuntime().halt(status);
    }

    private static void rehearse(String[] arguments) throws Exception {
        NamesrvStartup.main0(new String[] {"-c", arguments[0]});
        CleansAtOnce.main(new String[] {"-c", arguments[1]});
        System.setIn(new InputStream() {
            @Override
            public int read() throws IOException {
                try {
                    Thread.sleep(LASTS_MS);
                } catch (InterruptedException error) {
                    throw new IOException(error);
                }
                return -1;
            }
        });
        new Load(Arrays.copyOfRange(arguments, 2, arguments.length)).run();
    }
}
