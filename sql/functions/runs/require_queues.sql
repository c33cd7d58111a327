CREATE OR REPLACE FUNCTION messages.require_queues(queue_names text[]) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    unknown text;
BEGIN
    SELECT name INTO unknown FROM unnest(require_queues.queue_names) WITH ORDINALITY AS given (name, place)
     WHERE NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = name) ORDER BY place LIMIT 1;
    IF FOUND THEN
        PERFORM messages.raise_unknown_queue(unknown);
    END IF;
END $$;
COMMENT ON FUNCTION messages.require_queues(text[]) IS
    'Raises PQ001 for the first of these names that no queue has: a pipeline must not take a misspelt name for a queue with nothing in it.';
