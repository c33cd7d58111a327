CREATE OR REPLACE FUNCTION messages.lock_ready(queue_name text, max_messages integer DEFAULT 1, topic text DEFAULT NULL)
RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_nestloop = on SET enable_indexscan = on SET enable_tidscan = on
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    token   uuid        := gen_random_uuid();
    pattern text        := CASE WHEN lock_ready.topic IS NOT NULL THEN messages.topic_regex(lock_ready.topic) END;
    policy  messages.queue;
BEGIN
    SELECT * INTO policy FROM messages.queue q WHERE q.queue_name = lock_ready.queue_name COLLATE "default";
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(lock_ready.queue_name);
    END IF;
    PERFORM messages.check_lease(lock_ready.queue_name, policy.paused, lock_ready.max_messages, NULL);
    IF policy.max_leased IS NOT NULL THEN
        RAISE EXCEPTION 'queue % has a max_leased of %, and what is locked without a lease is not counted',
                        quote_literal(lock_ready.queue_name), policy.max_leased
            USING ERRCODE = 'PQ004', HINT = 'Lease its messages.';
    END IF;
    -- Until the commit: whoever finds the record of this batch and gets the lock knows that the batch has ended.
    PERFORM pg_advisory_xact_lock(hashtextextended('messages.locked_batch.' || token, 0));
    -- Without the marks of the leases, and without a sweep, whose work this transaction would keep from others.
    RETURN QUERY
    WITH ready AS MATERIALIZED (
        SELECT m.*
          FROM messages.message m
         WHERE m.queue_name = lock_ready.queue_name COLLATE "default" AND m.visible_at <= moment
           AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
           AND (pattern IS NULL OR '.' || m.topic ~ pattern)
         ORDER BY m.priority DESC, m.visible_at LIMIT lock_ready.max_messages FOR UPDATE SKIP LOCKED)
    SELECT r.id, r.queue_name, r.message, r.headers, r.reference, r.topic, r.group_key, r.priority,
           least(r.attempts + 1, 32767)::smallint, policy.max_attempts, r.requeues, r.created_at, token, NULL::timestamptz
      FROM ready r;
END $$;
COMMENT ON FUNCTION messages.lock_ready(text, integer, text) IS
    'Locks up to max_messages ready messages until the end of the caller''s transaction, without a lease: others pass them over, and a rollback makes them ready at once. For work without effects outside of this transaction. record_locked_batch, from another session, makes a crash count as an attempt; archive_rows finishes them, under the lock_token that is returned. PQ001: unknown queue; PQ002: paused; PQ004: bad argument, or the queue has a max_leased.';
