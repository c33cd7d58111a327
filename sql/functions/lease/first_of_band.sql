CREATE OR REPLACE FUNCTION messages.first_of_band(queue_name text, band smallint[], from_at timestamptz, moment timestamptz) RETURNS smallint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- A descent of the index for each priority has to look cheaper than a walk through all that was finished in them.
SET plan_cache_mode = force_generic_plan SET cpu_operator_cost = 0 SET random_page_cost = 0 SET seq_page_cost = 0
SET jit = off SET enable_bitmapscan = off SET enable_seqscan = off SET enable_indexscan = on
AS $$
BEGIN
    -- In the order of the index, so the highest is first.
    RETURN (SELECT m.priority FROM messages.message m
             WHERE m.queue_name = first_of_band.queue_name COLLATE "default" AND m.priority = ANY (first_of_band.band)
               AND m.visible_at >= first_of_band.from_at AND m.visible_at <= first_of_band.moment AND m.lock_expires_at IS NULL
             LIMIT 1);
END $$;
COMMENT ON FUNCTION messages.first_of_band(text, smallint[], timestamptz, timestamptz) IS
    'The highest of these priorities in which a message is ready; NULL if there is none.';
