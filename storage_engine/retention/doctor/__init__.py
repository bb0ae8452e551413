"""Diagnosis of a store: first the facts, then pure judgements on faults and what to do about them."""
