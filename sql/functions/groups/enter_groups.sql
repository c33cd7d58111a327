CREATE OR REPLACE FUNCTION messages.enter_groups(queue_name text, ids bigint[], group_keys text[], requeued_from bigint[] DEFAULT NULL)
RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_nestloop = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    waits boolean[];
BEGIN
    -- Publishers share these locks. Whoever finishes the last message of a group takes one alone, because what they publish
    -- cannot be seen yet.
    PERFORM pg_advisory_xact_lock_shared(bucket.lock) FROM (
        SELECT DISTINCT hashtextextended('messages.group.' || enter_groups.queue_name, hashtextextended(key, 0) & 255) AS lock
          FROM unnest(group_keys) AS key WHERE key IS NOT NULL ORDER BY 1) bucket;
    -- A dead head that was requeued gets its place back.
    IF num_nonnulls(VARIADIC requeued_from) > 0 THEN
        UPDATE messages.group_head h SET id = again.id FROM unnest(ids, group_keys, requeued_from) AS again (id, group_key, requeued_from)
         WHERE h.queue_name = enter_groups.queue_name AND h.group_key = again.group_key AND h.id = again.requeued_from;
    END IF;
    -- In one order, so that two publishers of new groups cannot deadlock.
    WITH member AS MATERIALIZED (
        SELECT m.id, m.group_key, m.place FROM unnest(ids, group_keys) WITH ORDINALITY AS m (id, group_key, place)),
    head AS (
        INSERT INTO messages.group_head AS h (queue_name, group_key, id)
        SELECT enter_groups.queue_name, m.group_key, min(m.id) FROM member m WHERE m.group_key IS NOT NULL
         GROUP BY m.group_key ORDER BY m.group_key COLLATE "C"
        ON CONFLICT DO NOTHING RETURNING h.id),
    follower AS (
        INSERT INTO messages.group_follower AS f (queue_name, group_key, id)
        SELECT enter_groups.queue_name, m.group_key, m.id FROM member m
         WHERE m.group_key IS NOT NULL AND NOT EXISTS (SELECT FROM head h WHERE h.id = m.id)
           AND (requeued_from IS NULL OR NOT EXISTS (
                SELECT FROM messages.group_head h WHERE h.queue_name = enter_groups.queue_name AND h.group_key = m.group_key AND h.id = m.id))
        RETURNING f.id)
    SELECT array_agg(f.id IS NOT NULL ORDER BY m.place) INTO waits FROM member m LEFT JOIN follower f ON f.id = m.id;
    RETURN waits;
END $$;
COMMENT ON FUNCTION messages.enter_groups(text, bigint[], text[], bigint[]) IS
    'Gives messages that are being published their places in their groups, in the order of the arrays, and returns which of them wait behind others.';
