-- What `make count` compares the verbs with: the least that PL/pgSQL can do to the same tables.
CREATE SCHEMA raw;
CREATE FUNCTION raw.publish(queue_name text, message jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    new_id bigint;
BEGIN
    INSERT INTO messages.message_rows (queue_name, message) VALUES (publish.queue_name, publish.message) RETURNING id INTO new_id;
    RETURN new_id;
END $$;
CREATE FUNCTION raw.lease(queue_name text, number integer) RETURNS SETOF messages.message_rows LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE messages.message_rows m
       SET lock_expires_at = clock_timestamp() + interval '5 min', leased_at = clock_timestamp(), attempts = m.attempts + 1
     WHERE m.ctid = ANY (ARRAY(
        SELECT m.ctid FROM messages.message_rows m
         WHERE m.queue_name = lease.queue_name AND m.priority = 4 AND m.visible_at <= clock_timestamp() AND m.lock_expires_at IS NULL
         ORDER BY m.visible_at LIMIT number FOR UPDATE SKIP LOCKED))
    RETURNING m.*;
END $$;
CREATE FUNCTION raw.archive(ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH gone AS (DELETE FROM messages.message_rows m WHERE m.id = ANY (ids) RETURNING m.*)
    INSERT INTO messages.archive_rows (id, created_at, leased_at, priority, attempts, queue_name, result, message)
    SELECT g.id, g.created_at, g.leased_at, g.priority, g.attempts, g.queue_name, 'success', g.message FROM gone g
    RETURNING id;
END $$;
