import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * A broker whose own cleaning begins when it has started. By itself it begins a minute later, which no setting
 * changes, and tests that start brokers many times would wait for most of their time.
 */
public class CleansAtOnce {
    private static final long UNTIL_ITS_OWN_BEGINS_MS = 58_000;

    public static void main(String[] arguments) throws Exception {
        BrokerController controller = ServesAtOnce.start(arguments);
        DefaultMessageStore store = (DefaultMessageStore) controller.getMessageStore();
        int interval = store.getMessageStoreConfig().getCleanResourceInterval();
        clean(store, "cleanFilesPeriodically", "scheduledExecutorService", interval);
        try {
            clean(store, "cleanQueueFilesPeriodically", "scheduledCleanQueueExecutorService", interval);
        } catch (NoSuchMethodException older) {
            // Until 5.0 one pass cleans the log, then the queues.
        }
    }

    /** In the thread that does it later on, so that no two passes ever meet. */
    private static void clean(DefaultMessageStore store, String pass, String executor, int interval)
        throws ReflectiveOperationException {
        Method method = DefaultMessageStore.class.getDeclaredMethod(pass);
        method.setAccessible(true);
        Field field = DefaultMessageStore.class.getDeclaredField(executor);
        field.setAccessible(true);
        ScheduledExecutorService service = (ScheduledExecutorService) field.get(store);
        ScheduledFuture<?> early = service.scheduleAtFixedRate(() -> {
            try {
                method.invoke(store);
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
            }
        }, 0, interval, TimeUnit.MILLISECONDS);
        service.schedule(() -> early.cancel(false), UNTIL_ITS_OWN_BEGINS_MS, TimeUnit.MILLISECONDS);
    }
}
