CREATE OR REPLACE FUNCTION messages.sample_messages(relation regclass, queue_names text[], moment timestamptz, max_pages integer)
RETURNS TABLE (sample integer, queue_name text, messages bigint, leased bigint, delayed bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    pages  bigint := pg_relation_size(relation) / current_setting('block_size')::integer;
    page   bigint;
    begins tid;
    ends   tid;
BEGIN
    FOR number IN 1 .. least(pages, max_pages) LOOP
        page := trunc((number - 0.5) * pages / least(pages, max_pages));
        begins := format('(%s,0)', page)::tid;
        ends := format('(%s,0)', page + 1)::tid;
        IF relation = 'messages.message_rows'::regclass THEN
            RETURN QUERY
            SELECT number, m.queue_name, count(*),
                   count(*) FILTER (WHERE m.lock_expires_at > sample_messages.moment),
                   count(*) FILTER (WHERE m.visible_at > sample_messages.moment AND coalesce(m.lock_expires_at <= sample_messages.moment, true))
              FROM messages.message_rows m
             WHERE m.ctid >= begins AND m.ctid < ends AND m.queue_name = ANY (sample_messages.queue_names)
             GROUP BY m.queue_name;
        ELSE
            RETURN QUERY
            SELECT number, d.queue_name, count(*), 0::bigint, 0::bigint
              FROM messages.dead_message d
             WHERE d.ctid >= begins AND d.ctid < ends AND d.queue_name = ANY (sample_messages.queue_names)
             GROUP BY d.queue_name;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.sample_messages(regclass, text[], timestamptz, integer) IS
    'The messages of some queues on at most max_pages pages of messages.message_rows or messages.dead_message, one row per page and queue that is on it. The pages are evenly spread, and always the same ones of a table that does not grow, so that they are in memory when somebody asks again.';
