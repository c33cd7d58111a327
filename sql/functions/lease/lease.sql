CREATE OR REPLACE FUNCTION messages.lease(
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    token  uuid        := gen_random_uuid();
    holder text        := coalesce(left(lease.locked_by, 1024), session_user);
    wanted integer     := lease.max_messages;
    taken  integer     := 0;
    first  record;
    rest   record;
    until  timestamptz;
BEGIN
    IF lease.lease_for IS NOT NULL THEN
        PERFORM messages.check_duration('lease_for', lease.lease_for, '1 millisecond', '12 hours');
    END IF;
    first := messages.take_first(lease.queue_name, wanted, NULL);
    FOR try IN 1 .. 2 LOOP
        IF first.ids IS NOT NULL THEN
            until := first.moment + coalesce(lease.lease_for, first.lease_for);
            INSERT INTO messages.timer (queue_name, at, lock_token, ids) VALUES (lease.queue_name, until, token, first.ids);
            RETURN QUERY
            UPDATE messages.message_rows m
               SET lock_expires_at = until, leased_at = first.moment, lock_token = token, locked_by = holder, attempts = least(m.attempts + 1, 32767)
              FROM unnest(first.tids) AS f (tid) WHERE m.ctid = f.tid
            RETURNING m.id, m.queue_name, m.message, m.headers, m.reference, m.topic, m.group_key, m.priority, m.attempts,
                      first.max_attempts, m.requeues, m.created_at, m.lock_token, m.lock_expires_at;
            taken := taken + cardinality(first.ids);
        END IF;
        EXIT WHEN try = 2 OR taken = wanted AND taken > 0;
        rest := messages.prepare_lease(lease.queue_name, wanted - taken, first.moment);
        EXIT WHEN rest.wanted = 0;
        first := messages.take_first(lease.queue_name, rest.wanted, rest.moment);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lease(text, integer, interval, text) IS
    'Leases up to max_messages ready messages under one fresh lock_token, highest priority first, then oldest. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument; PQ016: a transaction that leased from a queue with a max_leased stays open.';
