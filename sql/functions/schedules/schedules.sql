CREATE OR REPLACE FUNCTION messages.schedules()
RETURNS TABLE (
    schedule_name text, cron text, time_zone text, queue_name text, priority smallint, paused boolean,
    created_at timestamptz, last_tick timestamptz, next_at timestamptz, last_error text
)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.schedule_name, s.cron, s.time_zone, s.queue_name, s.priority, s.paused, s.created_at, s.last_tick,
           CASE WHEN NOT s.paused
                THEN messages.next_cron_tick(s.cron, s.time_zone, greatest(s.checked_until, clock_timestamp() - interval '24 hours')) END,
           s.last_error
      FROM messages.schedule s
     WHERE (SELECT r.everything FROM messages.session_reach r)
        OR s.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r)
     ORDER BY s.schedule_name
$$;
COMMENT ON FUNCTION messages.schedules() IS
    'Each schedule without its body. next_at is its next tick: in the past if it is overdue (last_error may say why), NULL while it is paused.';
