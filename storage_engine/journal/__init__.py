"""The journal: what was meant and what was done, for each store; and how it is read."""
