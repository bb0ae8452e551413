"""Quarantine: the place where files that a run deletes lie for a while, so that they can be brought back.

``set_aside`` fills it behind the gate, ``undo`` brings it back, ``emptying`` ends it; ``look`` shows it. The
journal says what there is and what became of it (``records``). Beside a running broker there is none.
"""
