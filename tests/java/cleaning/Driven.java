import java.io.File;
import java.lang.instrument.ClassFileTransformer;
import java.security.ProtectionDomain;
import java.util.Calendar;
import java.util.Map;
import java.util.function.LongSupplier;
import net.bytebuddy.agent.ByteBuddyAgent;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * The clock and the disk that the broker's classes see. What they call of the JDK to learn either is called here
 * instead; not one line of theirs is another. A pause passes at once.
 */
public final class Driven {
    static long nowMs;
    static long diskBytes;
    static LongSupplier usedBytes = () -> 0;

    private static final Map<String, String[]> CALLS = Map.of(
        "java/lang/System.currentTimeMillis()J", new String[] {"currentTimeMillis", "()J"},
        "java/util/Calendar.getInstance()Ljava/util/Calendar;", new String[] {"calendar", "()Ljava/util/Calendar;"},
        "java/lang/Thread.sleep(J)V", new String[] {"sleep", "(J)V"},
        "java/io/File.getTotalSpace()J", new String[] {"totalSpace", "(Ljava/io/File;)J"},
        "java/io/File.getFreeSpace()J", new String[] {"freeSpace", "(Ljava/io/File;)J"},
        "java/io/File.getUsableSpace()J", new String[] {"freeSpace", "(Ljava/io/File;)J"});

    private Driven() {
    }

    /** Before the first class of the broker is loaded. */
    static void install() {
        ByteBuddyAgent.install().addTransformer(new ClassFileTransformer() {
            @Override
            public byte[] transform(ClassLoader loader, String name, Class<?> type, ProtectionDomain domain, byte[] code) {
                return name != null && name.startsWith("org/apache/rocketmq/") ? redirected(code) : null;
            }
        });
    }

    private static byte[] redirected(byte[] code) {
        ClassReader reader = new ClassReader(code);
        ClassWriter writer = new ClassWriter(reader, 0);
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String types, String signature, String[] errors) {
                return new MethodVisitor(Opcodes.ASM9, super.visitMethod(access, name, types, signature, errors)) {
                    @Override
                    public void visitMethodInsn(int opcode, String owner, String called, String types, boolean isInterface) {
                        String[] here = CALLS.get(owner + "." + called + types);
                        if (here == null) {
                            super.visitMethodInsn(opcode, owner, called, types, isInterface);
                        } else {
                            super.visitMethodInsn(Opcodes.INVOKESTATIC, "Driven", here[0], here[1], false);
                        }
                    }
                };
            }
        }, 0);
        return writer.toByteArray();
    }

    public static long currentTimeMillis() {
        return nowMs;
    }

    public static Calendar calendar() {
        Calendar calendar = Calendar.getInstance();
        calendar.setTimeInMillis(nowMs);
        return calendar;
    }

    public static void sleep(long pauseMs) {
        nowMs += pauseMs;
    }

    public static long totalSpace(File path) {
        return diskBytes;
    }

    public static long freeSpace(File path) {
        return diskBytes - usedBytes.getAsLong();
    }
}
