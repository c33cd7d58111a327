CREATE OR REPLACE FUNCTION messages.check_queues_exist(queue_names text[]) RETURNS void
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT messages.check_queue(given.name, 'observe') FROM unnest(queue_names) WITH ORDINALITY AS given (name, place) ORDER BY given.place
$$;
COMMENT ON FUNCTION messages.check_queues_exist(text[]) IS
    'Raises PQ001 for the first of these names that no queue has: a pipeline must not mistake a misspelt name for an empty queue.';
