"""A node beside its running cluster, which is asked, held and told by confluent-kafka what to delete."""
