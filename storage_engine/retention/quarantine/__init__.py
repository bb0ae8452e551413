"""Quarantine: a place where a run's deleted files stay for a while, so that an undo can bring them back.

``set_aside`` fills it after the gate, ``undo`` brings files back, ``emptying`` empties it, and ``look`` shows
it. The journal records which quarantines exist and how each ended (``records``). Running brokers have none.
"""
