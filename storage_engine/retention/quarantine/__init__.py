"""Where what a run deletes lies for a while, so that it can be brought back: a run's quarantine.

``set_aside`` fills it behind the gate, ``undo`` brings it back, ``emptying`` ends it; ``look`` shows it. The
journal says what there is and what became of it (``records``). Beside a running broker there is none.
"""
