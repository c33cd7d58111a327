CREATE OR REPLACE FUNCTION messages.queue_up_in_groups(queue_name text, ids bigint[], group_keys text[], requeued_from bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    member record;
BEGIN
    -- Until the commit, nobody else changes these groups. Locked in one order, so that two publishers cannot deadlock.
    PERFORM pg_advisory_xact_lock(bucket.lock) FROM (
        SELECT DISTINCT messages.group_lock_key(queue_up_in_groups.queue_name, group_key) AS lock FROM unnest(group_keys) AS group_key
         ORDER BY 1) bucket;
    FOR member IN
        SELECT * FROM unnest(ids, group_keys, requeued_from) WITH ORDINALITY AS m (id, group_key, requeued_from, place) ORDER BY place
    LOOP
        -- A dead head that was requeued gets its place back.
        UPDATE messages.group_member g SET id = member.id WHERE g.id = member.requeued_from AND NOT g.waits;
        CONTINUE WHEN FOUND;
        INSERT INTO messages.group_member AS g (id, queue_name, group_key, waits)
        VALUES (member.id, queue_up_in_groups.queue_name, member.group_key,
                EXISTS (SELECT FROM messages.group_member o
                         WHERE o.queue_name = queue_up_in_groups.queue_name AND o.group_key = member.group_key));
    END LOOP;
    UPDATE messages.message m SET due_at = m.visible_at, visible_at = 'infinity'
      FROM messages.group_member g WHERE g.id = ANY (ids) AND g.waits AND m.id = g.id;
END $$;
COMMENT ON FUNCTION messages.queue_up_in_groups(text, bigint[], text[], bigint[]) IS
    'Gives messages that were just inserted their place in their groups; all but the head of a group wait.';
