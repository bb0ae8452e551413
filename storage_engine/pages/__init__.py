"""Pages that a person reads of a run, made from its report as JSON.

Nothing here opens a store, a lake or a journal. An import needs Jinja and the standard library, so that a
web server may serve pages.
"""
