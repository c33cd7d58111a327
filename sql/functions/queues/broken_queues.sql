CREATE OR REPLACE FUNCTION messages.broken_queues(queue_names text[]) RETURNS TABLE (queue_name text, broken_since timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.queue_name, q.broken_since FROM messages.queue q
     WHERE q.queue_name = ANY (broken_queues.queue_names) AND q.broken_since IS NOT NULL AND (messages.judge_probe(q)).broken_since IS NOT NULL
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     ORDER BY q.broken_since
$$;
COMMENT ON FUNCTION messages.broken_queues(text[]) IS
    'The queues among these that are broken, and since when. Names that this login may not observe are left out.';
