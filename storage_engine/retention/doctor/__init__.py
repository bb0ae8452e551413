"""Diagnosis of a store: facts first, then pure judgements of what is wrong and what to do."""
