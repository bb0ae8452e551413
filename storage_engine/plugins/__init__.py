"""Pages in Airflow's web server. A task's process loads the plugin's entry point too, and nothing else."""
