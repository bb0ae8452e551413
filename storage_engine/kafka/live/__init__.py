"""A node beside its running cluster.

All requests to the cluster, also to hold topics and to delete, go through confluent-kafka.
"""
