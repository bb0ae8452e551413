"""Pages for people about a run, from its report as JSON. Nothing opens a store, a lake or a journal.

An import needs only Jinja and the standard library, so that a web server can serve the pages.
"""
