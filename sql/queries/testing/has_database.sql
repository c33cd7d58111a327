-- One row if the server has a database of this name.
SELECT FROM pg_catalog.pg_database WHERE datname = %s
