-- The second database: the metadata of Airflow. The queue's own is made by POSTGRES_DB.
CREATE DATABASE airflow;
