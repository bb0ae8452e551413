"""The journal: intents and results for each store, and its readers."""
