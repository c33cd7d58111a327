-- A time of the database's clock, so long ago.
SELECT clock_timestamp() - %s::interval
