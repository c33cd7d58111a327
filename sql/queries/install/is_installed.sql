-- One row if there is a schema of the queue.
SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'messages'
