"""A node beside its running cluster: what the cluster says, asked by confluent-kafka and never changed."""
