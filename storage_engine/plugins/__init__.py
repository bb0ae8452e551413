"""Pages in Airflow's web server. A task's process loads only the plugin's entry point of this package."""
