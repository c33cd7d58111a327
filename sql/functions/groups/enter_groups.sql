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
    WITH head AS (
        INSERT INTO messages.group_head AS h (queue_name, group_key, id)
        SELECT enter_groups.queue_name, m.group_key, min(m.id) FROM unnest(ids, group_keys) AS m (id, group_key)
         WHERE m.group_key IS NOT NULL GROUP BY m.group_key ORDER BY m.group_key COLLATE "C"
        ON CONFLICT DO NOTHING RETURNING h.id),
    member AS MATERIALIZED (
        SELECT m.id, m.group_key, m.place,
               head.id IS NULL AND m.group_key IS NOT NULL AND (requeued_from IS NULL OR NOT EXISTS (
                   SELECT FROM messages.group_head h
                    WHERE h.queue_name = enter_groups.queue_name AND h.group_key = m.group_key AND h.id = m.id)) AS waits
          FROM unnest(ids, group_keys) WITH ORDINALITY AS m (id, group_key, place) LEFT JOIN head ON head.id = m.id),
    follower AS (
        INSERT INTO messages.group_follower (group_hash, queue_name, group_key, id)
        SELECT hashtextextended(m.group_key, hashtextextended(enter_groups.queue_name, 0)), enter_groups.queue_name, m.group_key, m.id FROM member m WHERE m.waits)
    SELECT array_agg(m.waits ORDER BY m.place) INTO waits FROM member m;
    RETURN waits;
END $$;
COMMENT ON FUNCTION messages.enter_groups(text, bigint[], text[], bigint[]) IS
    'Gives messages that are being published their places in their groups, in the order of the arrays, and returns which of them wait behind others.';
