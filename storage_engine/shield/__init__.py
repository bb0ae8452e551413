"""The shield: our own directory of links to segments that no lake proves yet.

A link keeps a segment's bytes when the segment is deleted from the log.
"""
