"""Pages for people about a run, from its report as JSON. This package opens no store, lake or journal.

An import needs only Jinja and the standard library, so that a web server can serve the pages.
"""
