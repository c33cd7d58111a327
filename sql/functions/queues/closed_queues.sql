CREATE OR REPLACE FUNCTION messages.closed_queues(queue_names text[]) RETURNS TABLE (queue_name text, paused boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT given.name, q.queue_name IS NOT NULL
      FROM unnest(queue_names) WITH ORDINALITY AS given (name, place)
      LEFT JOIN messages.queue q ON q.queue_name = given.name
           AND ((SELECT r.everything FROM messages.session_reach r)
                OR q.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     WHERE q.queue_name IS NULL OR q.paused
     ORDER BY place
$$;
COMMENT ON FUNCTION messages.closed_queues(text[]) IS
    'The names among these for which nobody should wait: there is no such queue, or none that this login may observe, or it is paused.';
