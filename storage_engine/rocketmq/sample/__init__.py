"""Sample stores: what a broker would have written within some days, made from a seed."""
