-- Lets one session migrate at a time; the others wait, and then find nothing to do.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('messages.migrate', 0))
