import java.lang.reflect.Field;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.ServiceThread;

/**
 * A broker that its name server knows when it has started. By itself it registers once as it starts, often
 * before it has connected, and then 10 s later, which no setting changes.
 *
 * <p>It doesn't write down its metrics of transactions, which nothing reads: the thread for that keeps a processor
 * busy for the broker's first three seconds.
 */
public class ServesAtOnce {
    private static final long CONNECTED_WITHIN_MS = 30_000;
    private static final long LOOK_AGAIN_MS = 20;

    public static void main(String[] arguments) throws Exception {
        start(arguments);
    }

    static BrokerController start(String[] arguments) throws Exception {
        BrokerController controller = BrokerStartup.start(BrokerStartup.createBrokerController(arguments));
        try {
            Field metrics = BrokerController.class.getDeclaredField("transactionMetricsFlushService");
            metrics.setAccessible(true);
            ((ServiceThread) metrics.get(controller)).shutdown();
            long end = System.currentTimeMillis() + CONNECTED_WITHIN_MS;
            while (controller.getBrokerOuterAPI().getRemotingClient().getAvailableNameSrvList().isEmpty()
                && System.currentTimeMillis() < end) {
                Thread.sleep(LOOK_AGAIN_MS);
            }
        } catch (NoSuchFieldException | NoSuchMethodError older) {
            // Releases before 5.2 have no such thread, and the oldest don't say whom they are connected with.
        }
        controller.registerBrokerAll(true, false, true);
        return controller;
    }
}
