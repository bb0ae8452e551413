"""Answers of the web pages about stores, as plain functions of a journal reader and the current time.

A web server that also answers the tasks' heartbeats imports this package. So it never imports Airflow, or a
library that reads segments or lakes.
"""
