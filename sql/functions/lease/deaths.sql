CREATE OR REPLACE FUNCTION messages.deaths(queue_name text, holder text, period interval) RETURNS TABLE (result text, number bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(deaths.queue_name, 'consume');
    PERFORM messages.check_duration('period', deaths.period, '0', '3660 days');
    RETURN QUERY
    SELECT a.result, count(*) FROM messages.archive_rows a
     WHERE a.fingerprint IS NOT NULL AND a.archived_at >= clock_timestamp() - deaths.period AND a.queue_name = deaths.queue_name COLLATE "default"
       AND a.result IN ('failed', 'lock_expired') AND starts_with(a.handled_by, deaths.holder)
     GROUP BY a.result ORDER BY a.result;
END $$;
COMMENT ON FUNCTION messages.deaths(text, text, interval) IS
    'How many messages of a queue died within this period in the hands of consumers whose locked_by begins with holder, by result: failed or lock_expired. What a handler rejected is not among them. PQ001: unknown queue.';
