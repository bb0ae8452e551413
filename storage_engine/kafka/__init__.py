"""Apache Kafka: the formats of its log directories."""
