-- Airflow's own database is made by the image. The journal and the Iceberg catalog have theirs.
CREATE DATABASE journal;
CREATE DATABASE lake;
