CREATE OR REPLACE FUNCTION messages.check_max_depth(queue_name text, arrived bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    setting text        := 'messages.published_to_' || check_max_depth.queue_name;
    class   integer     := hashtextextended('messages.depth.' || check_max_depth.queue_name, 0)::bit(32)::integer;
    queue   messages.queue;
    own     bigint;
    step    bigint;
    last    bigint;
    number  bigint;
    free    bigint;
    young   bigint;
    open    bigint;
BEGIN
    SELECT * INTO queue FROM messages.queue q WHERE q.queue_name = check_max_depth.queue_name COLLATE "default";
    IF queue.max_depth IS NULL THEN        -- since the caller saw one
        RETURN;
    END IF;
    -- What this transaction publishes is seen by nobody before the commit, but its locks are: the largest says how much it
    -- is, rounded up by at most an eighth, so that a long transaction needs few.
    own := arrived + CASE WHEN current_setting(setting, true) ~ '^[0-9]{1,9}$' THEN current_setting(setting, true)::bigint ELSE 0 END;
    PERFORM set_config(setting, own::text, true);
    step := 1::bigint << greatest(length(ltrim(own::bit(40)::text, '0')) - 4, 0);
    PERFORM pg_advisory_xact_lock_shared(class, least((own + step - 1) / step * step, 2147483647)::integer);
    -- Whoever draws a number up to the last one has room. Two never draw the same.
    last := coalesce(pg_sequence_last_value(queue.depth_last), 0);
    IF coalesce(pg_sequence_last_value(queue.depth_number), 0) + arrived <= last OR moment >= messages.stored_moment(queue.depth_recount_at, moment + interval '10 minutes') THEN
        SELECT max(nextval(queue.depth_number)) INTO number FROM generate_series(1, arrived);
    END IF;
    IF number <= last THEN
        RETURN;
    END IF;
    free := -1;
    -- The deeper the queue, the more counting costs. So count only when the room that was last found is used up, and for at
    -- most 2 % of the time while the queue stays full. A moment beyond ten minutes counts as none: the clock went back.
    IF moment >= messages.stored_moment(queue.depth_recount_at, moment + interval '10 minutes') THEN
        number := pg_sequence_last_value(queue.depth_number);
        -- In this order, so that a transaction which ends meanwhile is in one of the two, or in both.
        SELECT coalesce(sum(others.shown), 0) INTO open FROM (
            SELECT max(l.objid::bigint) AS shown FROM pg_locks l
             WHERE l.locktype = 'advisory' AND l.classid = (class::bigint & 4294967295)::oid AND l.objsubid = 2 AND l.granted
               AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
               AND l.pid IS DISTINCT FROM pg_backend_pid()
             GROUP BY l.virtualtransaction) others;
        SELECT queue.max_depth - open - count(*), count(*) FILTER (WHERE counted.created_at >= now()) INTO free, young FROM (
            SELECT m.created_at FROM messages.message m WHERE m.queue_name = check_max_depth.queue_name COLLATE "default"
             ORDER BY m.priority DESC, m.visible_at LIMIT queue.max_depth + arrived) AS counted;
        -- What open transactions published may go with them, and then the queue is not full. Nor does a pause pay where the
        -- room lasts for long.
        IF (free + young + open) * 50 < queue.max_depth THEN
            PERFORM messages.store_moment(queue.depth_recount_at, clock_timestamp() + least(50 * (clock_timestamp() - moment), interval '10 minutes'));
        END IF;
        -- Others have the room that this statement gives back.
        PERFORM setval(queue.depth_last, number + greatest(CASE WHEN free < 0 THEN free + arrived ELSE free END, 0));
    END IF;
    IF free < 0 THEN
        RAISE EXCEPTION 'queue % is full: its max_depth is %', quote_literal(queue.queue_name), queue.max_depth
            USING ERRCODE = 'PQ007',
                  HINT = format('Publish later, or raise the limit: SELECT messages.alter_queue(%L, max_depth => …)', queue.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_max_depth(text, bigint) IS
    'Raises PQ007 if the messages that were just inserted exceed the max_depth of the queue, together with those that other transactions have published and not committed.';
