CREATE OR REPLACE FUNCTION messages.leases_left(queue_name text, max_leased integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.lock_queue(leases_left.queue_name);
    RETURN greatest(0, leases_left.max_leased - (
        SELECT count(*) FROM messages.message_rows m
         WHERE m.id = ANY (ARRAY(SELECT unnest(t.ids) FROM messages.timer t WHERE t.queue_name = leases_left.queue_name COLLATE "default"))
           AND m.lock_expires_at > clock_timestamp()));
END $$;
COMMENT ON FUNCTION messages.leases_left(text, integer) IS
    'How many more messages of a queue with a max_leased may be leased; keeps other leases of this queue out until the commit. PQ016: a transaction that leased from it stays open.';
