"""Speed, as ratios to a peer that does the same work on the same machine in the same run."""
