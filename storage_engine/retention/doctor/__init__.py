"""Diagnosis of a store: first the facts, then pure judgements on faults and their remedies."""
