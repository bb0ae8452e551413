"""Pages in Airflow's web server. Processes of tasks load only the plugin's entry point."""
