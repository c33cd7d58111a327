CREATE OR REPLACE FUNCTION messages.health_groups(waiting_for interval, most integer DEFAULT 1000) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
    -- From one group to the next in the index, however many messages each has; the first thousand of a queue.
    WITH RECURSIVE asked AS MATERIALIZED (SELECT clock_timestamp() AS moment),
    dead AS (
        SELECT q.queue_name, first.group_key, 1 AS number FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT d.group_key FROM messages.dead_message d WHERE d.queue_name = q.queue_name AND d.group_key IS NOT NULL
             ORDER BY d.queue_name, d.group_key LIMIT 1) first
         WHERE q.on_dead_head = 'block'
        UNION ALL
        SELECT d.queue_name, next.group_key, d.number + 1 FROM dead d
         CROSS JOIN LATERAL (
            SELECT n.group_key FROM messages.dead_message n WHERE n.queue_name = d.queue_name AND n.group_key > d.group_key
             ORDER BY n.queue_name, n.group_key LIMIT 1) next
         WHERE d.number < most),
    waiting AS (
        SELECT q.queue_name, first.group_key, first.visible_at, 1 AS number FROM messages.queue q
         CROSS JOIN LATERAL (
            SELECT m.group_key, m.visible_at FROM messages.message_rows m WHERE m.queue_name = q.queue_name AND m.group_key IS NOT NULL
             ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) first
        UNION ALL
        SELECT w.queue_name, next.group_key, next.visible_at, w.number + 1 FROM waiting w
         CROSS JOIN LATERAL (
            SELECT m.group_key, m.visible_at FROM messages.message_rows m WHERE m.queue_name = w.queue_name AND m.group_key > w.group_key
             ORDER BY m.group_key, m.visible_at, m.requeues DESC, m.id LIMIT 1) next
         WHERE w.number < most),
    stopped AS (
        SELECT b.queue_name, b.group_key, moment - greatest(head.since, next.since) AS age, head.ids, head.result
          FROM dead b CROSS JOIN asked
         CROSS JOIN LATERAL (
            SELECT min(h.archived_at) AS since, array_agg(h.id) AS ids, (array_agg(h.result))[1] AS result,
                   bool_or(h.lock_expires_at > moment) AS is_leased
              FROM (SELECT * FROM messages.dead_message d WHERE d.queue_name = b.queue_name AND d.group_key = b.group_key LIMIT 100) h) head
         CROSS JOIN LATERAL (
            SELECT coalesce(m.due_at, m.created_at) AS since FROM messages.message_rows m
             WHERE m.queue_name = b.queue_name AND m.group_key = b.group_key AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) next
         WHERE head.is_leased IS NOT TRUE           -- else somebody is repairing it
        UNION ALL
        -- No message of the group has a place. Between two of them that is so for a moment only.
        SELECT w.queue_name, w.group_key, moment - coalesce(next.due_at, next.created_at), NULL, NULL
          FROM waiting w CROSS JOIN asked JOIN messages.queue q ON q.queue_name = w.queue_name
         CROSS JOIN LATERAL (
            SELECT * FROM messages.message_rows m WHERE m.queue_name = w.queue_name AND m.group_key = w.group_key AND m.visible_at = 'infinity'
             ORDER BY m.requeues DESC, m.id LIMIT 1) next
         WHERE w.visible_at = 'infinity' AND coalesce(next.due_at, next.created_at) <= moment AND coalesce(next.lock_expires_at <= moment, true)
           AND NOT EXISTS (SELECT FROM messages.message_rows m WHERE m.queue_name = w.queue_name AND m.group_key = w.group_key AND m.place IS NOT NULL)
           AND (q.on_dead_head <> 'block'
                OR NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.queue_name = w.queue_name AND d.group_key = w.group_key)))
    SELECT CASE WHEN worst.age > waiting_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN worst.age IS NULL THEN 'no group is blocked'
                ELSE format('group %L of queue %s has waited for %s%s; blocked groups: %s', left(worst.group_key, 100), worst.queue_name,
                            date_trunc('second', worst.age),
                            CASE WHEN worst.ids IS NULL THEN ' although it has a free place'
                                 ELSE format(' behind dead message %s (%s)', worst.ids[1], worst.result) END, counted.groups) END,
           CASE WHEN worst.age > waiting_for THEN
               CASE WHEN worst.ids IS NULL THEN 'SELECT messages.upkeep()'
                    WHEN worst.result IN ('failed', 'lock_expired') THEN
                        format('SELECT * FROM messages.requeue_dead(%L, ids => %L) -- or continue without it: SELECT messages.dismiss_dead(%1$L, ''why'', ids => %2$L)', worst.queue_name, worst.ids)
                    ELSE format('SELECT messages.dismiss_dead(%L, ''its group continues without it'', ids => %L) -- or requeue it with another body: messages.requeue_dead', worst.queue_name, worst.ids) END END
      FROM (SELECT count(*) AS groups FROM stopped) counted
      LEFT JOIN LATERAL (SELECT * FROM stopped s ORDER BY s.age DESC LIMIT 1) worst ON true
$$;
COMMENT ON FUNCTION messages.health_groups(interval, integer) IS
    'A check of health(). Which group is blocked: by a dead message, or because nobody lets the next message in although its place is free. The fix requeues what failed, and dismisses what was rejected or expired. Looks at so many groups of a queue at most.';
