-- The time of the database, by its own clock.
SELECT pg_catalog.clock_timestamp()
