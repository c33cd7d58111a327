CREATE OR REPLACE FUNCTION messages.consumable_queue(
    queue_name text, max_messages integer, OUT max_attempts smallint, OUT lease_for interval
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    queue messages.queue;
BEGIN
    SELECT * INTO queue FROM messages.queue q WHERE q.queue_name = consumable_queue.queue_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(consumable_queue.queue_name);
    END IF;
    IF queue.paused THEN
        RAISE EXCEPTION 'queue % is paused', quote_literal(queue.queue_name)
            USING ERRCODE = 'PQ002', HINT = format('Resume it: SELECT messages.alter_queue(%L, paused => false)', queue.queue_name);
    END IF;
    IF max_messages IS NULL OR max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', coalesce(max_messages::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 10000.';
    END IF;
    consumable_queue.max_attempts := queue.max_attempts;
    consumable_queue.lease_for := queue.lease_for;
END $$;
COMMENT ON FUNCTION messages.consumable_queue(text, integer) IS
    'Internal. The policy that a consumer needs; raises PQ001, PQ002 or PQ004 if nothing can be leased like this.';
