"""Sample stores, made from a seed: they are like stores that a broker has written within some days."""
