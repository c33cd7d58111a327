CREATE OR REPLACE FUNCTION messages.check_queues_exist(queue_names text[]) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    unknown text;
BEGIN
    SELECT name INTO unknown FROM unnest(check_queues_exist.queue_names) WITH ORDINALITY AS given (name, place)
     WHERE NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = name) ORDER BY place LIMIT 1;
    IF FOUND THEN
        PERFORM messages.raise_unknown_queue(unknown);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_queues_exist(text[]) IS
    'Raises PQ001 for the first of these names that no queue has: a pipeline must not mistake a misspelt name for an empty queue.';
