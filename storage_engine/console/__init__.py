"""Answers of the web pages about stores, computed from journals alone. They are plain functions of a journal
reader and the present time.

A web server that also answers the tasks' heartbeats imports this package. So nothing here imports Airflow, or
a library that reads segments or lakes.
"""
