"""Answers of the pages about stores, from journals alone: plain functions of a reader and the time of now.

A web server that also serves the tasks' heartbeats imports this: nothing here imports Airflow, or a library
that reads segments or lakes.
"""
