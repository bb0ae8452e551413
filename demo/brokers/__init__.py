"""Real brokers on loopback, as the demos, the benchmarks and the tests start them."""
