CREATE OR REPLACE FUNCTION messages.unknown_queues(queue_names text[]) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT name FROM unnest(queue_names) WITH ORDINALITY AS given (name, place)
     WHERE NOT EXISTS (
        SELECT FROM messages.queue q
         WHERE q.queue_name = name
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r)))
     ORDER BY place
$$;
COMMENT ON FUNCTION messages.unknown_queues(text[]) IS
    'Those of these names that no queue has, or none that this login may observe: whoever waits for one would wait for ever.';
