"""One module a step of a run; :mod:`storage_engine.retention.steps` lists what callers use."""
