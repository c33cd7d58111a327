CREATE OR REPLACE FUNCTION messages.repair_stuck_groups(queue_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    stuck text[];
BEGIN
    -- Heads that are in no queue any more, except dead ones that block: plain SQL deleted them, or the policy changed. What
    -- somebody else is changing is left to the next time.
    stuck := ARRAY(
        SELECT h.group_key FROM messages.group_head h JOIN messages.queue q ON q.queue_name = h.queue_name
         WHERE h.queue_name = repair_stuck_groups.queue_name COLLATE "C"
           AND NOT EXISTS (SELECT FROM messages.message m WHERE m.id = h.id)
           AND NOT (q.on_dead_head = 'block' AND EXISTS (SELECT FROM messages.dead_message d WHERE d.id = h.id))
           -- Below, a transaction that cannot tell whether a group has ended leaves it without a head. Not one more note each time.
           AND (h.id IS NOT NULL OR current_setting('transaction_isolation') LIKE 'read %')
           FOR UPDATE OF h SKIP LOCKED);
    -- Asked again, because a row may have got a newer head before it was locked.
    WITH freed AS (
        UPDATE messages.group_head h SET id = NULL
         WHERE h.queue_name = repair_stuck_groups.queue_name COLLATE "C" AND h.group_key = ANY (stuck COLLATE "C")
           AND NOT EXISTS (SELECT FROM messages.message m WHERE m.id = h.id)
           AND NOT EXISTS (SELECT FROM messages.dead_message d JOIN messages.queue q ON q.queue_name = h.queue_name
                            WHERE d.id = h.id AND q.on_dead_head = 'block')
        RETURNING h.queue_name, h.group_key)
    INSERT INTO messages.group_without_head (queue_name, group_key) SELECT f.queue_name, f.group_key FROM freed f;
    RETURN messages.make_next_of_missed_groups_ready(repair_stuck_groups.queue_name, NULL);
END $$;
COMMENT ON FUNCTION messages.repair_stuck_groups(text) IS
    'Makes the next message ready in each group that has no head and returns in how many; needed only after plain SQL deleted messages or a policy changed.';
