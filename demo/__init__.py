"""The whole job shown by itself: ``make demo`` and its siblings. No wheel has it."""
