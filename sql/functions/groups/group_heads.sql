CREATE OR REPLACE FUNCTION messages.group_heads(queue_name text, tids tid[]) RETURNS tid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    keys    text[];
    heads   tid[];
    waiting bigint[];
    behind  tid[];
BEGIN
    keys := ARRAY(SELECT DISTINCT m.group_key FROM unnest(tids) AS ready (tid) JOIN messages.message_rows m ON m.ctid = ready.tid);
    -- A new snapshot, under the locks of the groups that lease and consume have taken, so that two sessions cannot judge one group at
    -- once, and not see what the other leases: what has entered each group, and the first of those that wait behind others. These
    -- lie at the end of the group in the index, so that few are read.
    WITH policy AS MATERIALIZED (
        SELECT q.max_leased_per_group AS most, q.on_dead_head = 'block' AS blocks FROM messages.queue q
         WHERE q.queue_name = group_heads.queue_name COLLATE "default"),
    member AS (
        SELECT g.key, p.most, m.*
          FROM policy p
         CROSS JOIN unnest(keys) AS g (key)
         CROSS JOIN LATERAL (
            (SELECT m.ctid AS tid, m.id, m.requeues, m.visible_at, m.lock_expires_at FROM messages.message_rows m
              WHERE m.queue_name = group_heads.queue_name COLLATE "default" AND m.group_key = g.key COLLATE "default" AND m.visible_at < 'infinity')
            UNION ALL
            (SELECT m.ctid, m.id, m.requeues, m.visible_at, m.lock_expires_at FROM messages.message_rows m
              WHERE m.queue_name = group_heads.queue_name COLLATE "default" AND m.group_key = g.key COLLATE "default" AND m.visible_at = 'infinity'
              ORDER BY m.requeues DESC, m.id LIMIT p.most)) m),
    judged AS (
        -- The heads are the first of those that are not leased, as many as there is room for next to those that are. A delayed message lets
        -- others pass only where more than one may be leased.
        SELECT m.*, row_number() OVER (
                        PARTITION BY m.key, coalesce(m.lock_expires_at > moment, m.most > 1 AND m.visible_at > moment AND m.visible_at < 'infinity')
                            ORDER BY m.requeues DESC, m.id)
                    <= m.most - count(*) FILTER (WHERE m.lock_expires_at > moment) OVER (PARTITION BY m.key)
               AND dead.key IS NULL AS is_head
          FROM member m
          LEFT JOIN (SELECT DISTINCT d.group_key AS key FROM messages.dead_message d JOIN policy p ON p.blocks
                      WHERE d.queue_name = group_heads.queue_name COLLATE "default" AND d.group_key = ANY (keys)) dead ON dead.key = m.key)
    SELECT array_agg(j.tid) FILTER (WHERE j.is_head AND j.visible_at < 'infinity'),
           array_agg(j.id) FILTER (WHERE j.is_head AND j.visible_at = 'infinity'),
           array_agg(j.tid ORDER BY j.visible_at) FILTER (WHERE NOT j.is_head AND j.lock_expires_at IS NULL AND j.visible_at <= moment)
      INTO heads, waiting, behind FROM judged j;
    UPDATE messages.message_rows m SET due_at = coalesce(m.due_at, m.visible_at), visible_at = 'infinity'
     WHERE m.ctid = ANY (ARRAY(
        SELECT m.ctid FROM unnest(behind[:1000 + cardinality(behind) / 4]) AS entered (tid) JOIN messages.message_rows m ON m.ctid = entered.tid
           FOR UPDATE OF m SKIP LOCKED));
    IF waiting IS NOT NULL THEN            -- behind a message that is gone by now
        PERFORM messages.come_back(group_heads.queue_name, waiting);
    END IF;
    RETURN heads;
END $$;
COMMENT ON FUNCTION messages.group_heads(text, tid[]) IS
    'The places of the messages that may be leased now in the groups of these messages, which the caller has locked together with their groups: the first of each group, as many as there is room for next to those that are leased, unless a dead message blocks the group. Puts what else has entered these groups behind them: up to a thousand messages in one call, and a quarter of all that there are.';
