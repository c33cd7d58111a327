CREATE OR REPLACE FUNCTION messages.lease_dead(
    queue_name   text     DEFAULT NULL,
    max_messages integer  DEFAULT 100,
    lease_for    interval DEFAULT '5 minutes',
    locked_by    text     DEFAULT NULL,
    results      text[]   DEFAULT NULL,
    fingerprint  text     DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    max_requeues integer  DEFAULT NULL
) RETURNS SETOF messages.leased_dead_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment  timestamptz := clock_timestamp();
    token   uuid := gen_random_uuid();
    missing bigint := 0;
    passed  bigint;
BEGIN
    PERFORM messages.check_dead_lease(lease_dead.queue_name, lease_dead.max_messages, lease_dead.results, lease_dead.max_requeues);
    PERFORM messages.check_duration('lease_for', lease_dead.lease_for, '1 millisecond', '12 hours');
    LOOP
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT d.id FROM messages.dead_message d
             WHERE (lease_dead.queue_name IS NULL OR d.queue_name = lease_dead.queue_name)
               AND (lease_dead.results IS NULL OR d.result = ANY (lease_dead.results))
               AND (lease_dead.fingerprint IS NULL OR d.fingerprint = lease_dead.fingerprint)
               AND (lease_dead.ids IS NULL OR d.id = ANY (lease_dead.ids))
               AND (lease_dead.max_requeues IS NULL OR d.requeues < lease_dead.max_requeues)
               AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= moment)
             ORDER BY d.archived_at LIMIT lease_dead.max_messages FOR UPDATE SKIP LOCKED),
        leased AS (
            UPDATE messages.dead_message d
               SET lock_expires_at = moment + coalesce(lease_dead.lease_for, '5 minutes'), lock_token = token,
                   locked_by = coalesce(lease_dead.locked_by, session_user)
              FROM picked p WHERE d.id = p.id
            RETURNING d.id, d.archived_at, d.lock_token, d.lock_expires_at)
        SELECT a.id, a.queue_name, a.result, a.details, a.failure, a.message, a.headers, a.reference, a.topic, a.group_key, a.attempts,
               a.requeues, a.created_at, a.archived_at, a.handled_by, l.lock_token, l.lock_expires_at
          FROM leased l JOIN messages.message_archive a ON a.id = l.id AND a.archived_at = l.archived_at
         ORDER BY a.archived_at, a.id;
        EXIT WHEN FOUND;
        -- Those whose archived message is not there, in a partition that somebody detached, must not keep the others from
        -- their turn: they stay leased, and the next ones are tried.
        passed := missing;
        SELECT count(*) INTO missing FROM messages.dead_message d WHERE d.lock_token = token;
        EXIT WHEN missing = passed;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.lease_dead(text, integer, interval, text, text[], text, bigint[], integer) IS
    'Leases dead messages without a remedy under one fresh lock_token, oldest first; only those that were requeued fewer than max_requeues times; NULL stands for any queue, result, cause, id or number. PQ001: unknown queue; PQ004: bad argument.';
