# PostgreSQL with pg_cron, from the repository that the base image is already set up for.
FROM postgres:15-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends postgresql-15-cron \
    && rm -rf /var/lib/apt/lists/*
