import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ElectionNotNeededException;

/** Puts one replica of a partition first, and has it elected leader: ADDRESS TOPIC PARTITION NODE. */
public final class MoveLeader {
    public static void main(String[] arguments) throws Exception {
        TopicPartition partition = new TopicPartition(arguments[1], Integer.parseInt(arguments[2]));
        int wanted = Integer.parseInt(arguments[3]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            TopicDescription topic =
                admin.describeTopics(List.of(partition.topic())).allTopicNames().get().get(partition.topic());
            List<Integer> order = new ArrayList<>(List.of(wanted));
            for (Node replica : topic.partitions().get(partition.partition()).replicas()) {
                if (replica.id() != wanted) {
                    order.add(replica.id());
                }
            }
            NewPartitionReassignment moved = new NewPartitionReassignment(order);
            admin.alterPartitionReassignments(Map.of(partition, Optional.of(moved))).all().get();
            while (!admin.listPartitionReassignments(Set.of(partition)).reassignments().get().isEmpty()) {
                Thread.sleep(50);
            }
            Optional<Throwable> failed =
                admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get().get(partition);
            if (failed.isPresent() && !(failed.get() instanceof ElectionNotNeededException)) {
                throw new IllegalStateException(failed.get());
            }
        }
    }
}
