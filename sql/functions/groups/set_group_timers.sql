CREATE OR REPLACE FUNCTION messages.set_group_timers(queue_name text, keys text[], at timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A row for each group, so that whoever sees to one holds up no other.
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT set_group_timers.queue_name, coalesce(set_group_timers.at, clock_timestamp() + interval '10 ms'), '{}', g.key
      FROM (SELECT DISTINCT unnest(keys) AS key) g;
    IF keys <> '{}' THEN
        PERFORM messages.ring_for(set_group_timers.queue_name, 0);
    END IF;
END $$;
COMMENT ON FUNCTION messages.set_group_timers(text, text[], timestamptz) IS
    'Sets a timer for each of these groups, by default for in 10 ms, and rings.';
