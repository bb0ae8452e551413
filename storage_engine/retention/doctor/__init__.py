"""What a store is, what is wrong with it, and what to do: facts first, then pure judgements."""
