-- The process id of the session; a pooler tells its client another one.
SELECT pg_catalog.pg_backend_pid()
