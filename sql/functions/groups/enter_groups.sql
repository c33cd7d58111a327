CREATE OR REPLACE FUNCTION messages.enter_groups(queue_name text, ids bigint[], group_keys text[], requeued_from bigint[] DEFAULT NULL)
RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_nestloop = off SET enable_mergejoin = off
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    waits   boolean[];
    busy    bigint[];
    fresh   record;
    started text[] := '{}';
    missed  text[] := '{}';
    -- What such a transaction sees may have changed since it began: the head behind which a message waits may be gone.
    is_late boolean := current_setting('transaction_isolation') NOT LIKE 'read %';
BEGIN
    -- Publishers share these locks. Whoever finishes the last message of a group takes one alone, because what they publish
    -- cannot be seen yet.
    busy := ARRAY(
        SELECT bucket.lock FROM (
            SELECT DISTINCT hashtextextended('messages.group.' || enter_groups.queue_name, hashtextextended(key, 0) & 255) AS lock
              FROM unnest(group_keys) AS key WHERE key IS NOT NULL) bucket
         WHERE NOT pg_try_advisory_xact_lock_shared(bucket.lock));
    IF busy <> '{}' THEN
        busy := messages.share_group_locks(busy);
    END IF;
    -- A dead head that was requeued gets its place back, unless another transaction is just making the next one ready.
    IF num_nonnulls(VARIADIC requeued_from) > 0 THEN
        WITH free AS MATERIALIZED (
            SELECT h.ctid AS place, again.id
              FROM messages.group_head h, unnest(ids, group_keys, requeued_from) AS again (id, group_key, requeued_from)
             WHERE h.queue_name = enter_groups.queue_name COLLATE "C" AND h.group_key = again.group_key COLLATE "C" AND h.id = again.requeued_from
               FOR UPDATE OF h SKIP LOCKED)
        UPDATE messages.group_head head SET id = free.id FROM free WHERE head.ctid = free.place;
    END IF;
    -- The groups without a head, as far as can be seen, each with its first message. Asked once for each group.
    SELECT array_agg(g.group_key) AS group_keys, array_agg(g.id) AS ids INTO fresh
      FROM (SELECT m.group_key, min(m.id) AS id FROM unnest(ids, group_keys) AS m (id, group_key)
             WHERE m.group_key IS NOT NULL GROUP BY m.group_key OFFSET 0) g
     WHERE (SELECT true FROM messages.group_head h            -- not EXISTS, which would read all heads of the queue
             WHERE h.queue_name = enter_groups.queue_name COLLATE "C" AND h.group_key = g.group_key COLLATE "C") IS NULL;
    IF fresh.ids IS NOT NULL THEN
        -- What waits without a head was there before.
        IF busy <> '{}' OR EXISTS (SELECT FROM messages.group_without_head w WHERE w.queue_name = enter_groups.queue_name COLLATE "default") THEN
            missed := fresh.group_keys;
            SELECT array_agg(g.group_key) AS group_keys, array_agg(g.id) AS ids INTO fresh
              FROM unnest(fresh.group_keys, fresh.ids) AS g (group_key, id)
             WHERE messages.group_lock_key(enter_groups.queue_name, g.group_key) <> ALL (busy)
               AND NOT EXISTS (SELECT FROM messages.group_without_head w
                                WHERE w.queue_name = enter_groups.queue_name COLLATE "default" AND w.group_key = g.group_key COLLATE "default");
        END IF;
        IF fresh.ids IS NOT NULL THEN
            started := messages.start_groups(enter_groups.queue_name, fresh.group_keys, fresh.ids);
            IF cardinality(started) < cardinality(fresh.ids) THEN
                missed := missed || fresh.group_keys;
                fresh.ids := ARRAY(SELECT g.id FROM unnest(fresh.group_keys, fresh.ids) AS g (group_key, id)
                                    WHERE g.group_key IN (SELECT unnest(started)));
            END IF;
        END IF;
    END IF;
    WITH member AS MATERIALIZED (
        SELECT m.id, m.group_key, m.place,
               head.id IS NULL AND m.group_key IS NOT NULL AND (requeued_from IS NULL OR (
                   SELECT h.id FROM messages.group_head h
                    WHERE h.queue_name = enter_groups.queue_name COLLATE "C" AND h.group_key = m.group_key COLLATE "C") IS DISTINCT FROM m.id) AS waits
          FROM unnest(ids, group_keys) WITH ORDINALITY AS m (id, group_key, place) LEFT JOIN unnest(fresh.ids) AS head (id) ON head.id = m.id),
    follower AS (
        INSERT INTO messages.group_follower (group_hash, queue_name, group_key, id)
        SELECT hashtextextended(m.group_key, hashtextextended(enter_groups.queue_name, 0)), enter_groups.queue_name, m.group_key, m.id FROM member m WHERE m.waits)
    SELECT array_agg(m.waits ORDER BY m.place) INTO waits FROM member m;
    -- Whose head may come to nothing, or may be gone already: the next sweep looks again.
    IF busy <> '{}' OR missed <> '{}' OR is_late THEN
        INSERT INTO messages.group_without_head (queue_name, group_key)
        SELECT DISTINCT enter_groups.queue_name, g.key FROM unnest(group_keys) AS g (key)
         WHERE g.key IS NOT NULL AND g.key NOT IN (SELECT unnest(started))
           AND (is_late OR g.key IN (SELECT unnest(missed)) OR messages.group_lock_key(enter_groups.queue_name, g.key) = ANY (busy));
    END IF;
    RETURN waits;
END $$;
COMMENT ON FUNCTION messages.enter_groups(text, bigint[], text[], bigint[]) IS
    'Gives messages that are being published their places in their groups, in the order of the arrays, and returns which of them wait behind others. Of a group that another transaction is starting or finishing all wait until the next sweep sees what became of it; nobody waits for a transaction to end.';
