CREATE OR REPLACE FUNCTION messages.join_groups(queue_name text, ids bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    UPDATE messages.message_rows m SET place = NULL, visible_at = 'infinity', due_at = coalesce(greatest(m.due_at, nullif(m.visible_at, 'infinity')), m.created_at)
     WHERE m.id = ANY (ids) AND m.group_key IS NOT NULL AND m.lock_expires_at IS NULL;
    -- Once now, and where a delayed message does not hold up the others of its group, at the end of its delay.
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT join_groups.queue_name, due.at, '{}'::bigint[], m.group_key
      FROM messages.message_rows m CROSS JOIN LATERAL (VALUES (moment), (m.due_at)) AS due (at)
     WHERE m.id = ANY (ids) AND m.group_key IS NOT NULL AND m.lock_expires_at IS NULL AND due.at >= moment;
END $$;
COMMENT ON FUNCTION messages.join_groups(text, bigint[]) IS
    'Lets those of these messages that have a group wait in it, outside of their lanes, and sets timers that let the next of each group in. Leaves out what is leased.';
