"""A server that gives archived records to consumers of Kafka, at the offsets that they know."""
