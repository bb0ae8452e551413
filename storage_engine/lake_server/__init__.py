"""Serve archived records to Kafka consumers, at the offsets that they know."""
