-- How long a session has had no statement to work on; NULL while it has one, or if this login may not see it.
SELECT CASE WHEN a.state LIKE 'idle%%' THEN pg_catalog.clock_timestamp() - a.state_change END
  FROM pg_catalog.pg_stat_activity a
 WHERE a.pid = %s
