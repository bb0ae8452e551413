"""A node with its running cluster. All requests to the cluster go through confluent-kafka."""
