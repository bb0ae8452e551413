"""Answers of the web pages about stores, as plain functions of a journal reader and the current time.

A store's name is the id of its connection. Functions that read a journal raise JournalUnavailableError if it
can't be read, and BadInputError if it is of another version.

A web server that also answers the tasks' heartbeats imports this package. So it never imports Airflow, or a
library that reads segments or lakes.
"""
