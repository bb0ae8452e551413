"""Pages in Airflow's web server. A task's process also loads the plugin's entry point, but nothing else of
this package.
"""
