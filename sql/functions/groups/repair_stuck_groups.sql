CREATE OR REPLACE FUNCTION messages.repair_stuck_groups(queue_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    healed bigint;
BEGIN
    -- Members that are in no queue any more, except dead heads that block: plain SQL deleted them, or the policy changed.
    -- What somebody else is changing is left to the next time.
    DELETE FROM messages.group_member WHERE ctid = ANY (ARRAY(
        SELECT g.ctid FROM messages.group_member g JOIN messages.queue q ON q.queue_name = g.queue_name
         WHERE g.queue_name = repair_stuck_groups.queue_name
           AND NOT EXISTS (SELECT FROM messages.message m WHERE m.id = g.id)
           AND NOT (NOT g.waits AND q.on_dead_head = 'block' AND EXISTS (SELECT FROM messages.dead_message d WHERE d.id = g.id))
           FOR UPDATE OF g SKIP LOCKED));
    WITH RECURSIVE groups AS (
        (SELECT g.group_key FROM messages.group_member g WHERE g.queue_name = repair_stuck_groups.queue_name ORDER BY g.group_key LIMIT 1)
        UNION ALL
        SELECT (SELECT g.group_key FROM messages.group_member g
                 WHERE g.queue_name = repair_stuck_groups.queue_name AND g.group_key > groups.group_key ORDER BY g.group_key LIMIT 1)
          FROM groups WHERE groups.group_key IS NOT NULL)
    SELECT count(*) INTO healed FROM groups
     WHERE groups.group_key IS NOT NULL
       AND NOT EXISTS (SELECT FROM messages.group_member h
                        WHERE h.queue_name = repair_stuck_groups.queue_name AND h.group_key = groups.group_key AND NOT h.waits)
       AND messages.make_next_of_group_ready(repair_stuck_groups.queue_name, groups.group_key);
    RETURN healed;
END $$;
COMMENT ON FUNCTION messages.repair_stuck_groups(text) IS
    'Makes the next message ready in each group that has no head and returns in how many; needed only after plain SQL deleted messages or a policy changed.';
