CREATE OR REPLACE FUNCTION messages.lease_named(
    lease_name   text,
    queue_name   text,
    max_messages integer  DEFAULT 1000,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    known messages.named_lease;
    fresh boolean;
    until timestamptz;
BEGIN
    PERFORM messages.check_length('lease_name', lease_named.lease_name, 1, 255, required => true);
    PERFORM messages.check_queue(lease_named.queue_name, 'consume');
    PERFORM messages.check_duration('lease_for', lease_named.lease_for, '1 millisecond', '12 hours');
    -- Of two concurrent calls the second waits here for the first, and then finds what that one leased.
    INSERT INTO messages.named_lease (lease_name, queue_name, expires_at)
    VALUES (lease_named.lease_name, lease_named.queue_name, clock_timestamp()) ON CONFLICT (made_by, lease_name) DO NOTHING;
    fresh := FOUND;
    SELECT * INTO known FROM messages.named_lease n
     WHERE n.made_by = session_user AND n.lease_name = lease_named.lease_name COLLATE "default" FOR UPDATE;
    IF fresh THEN
        RETURN QUERY
        WITH leased AS MATERIALIZED (
            SELECT * FROM messages.lease(lease_named.queue_name, lease_named.max_messages, lease_named.lease_for,
                                         lease_named.locked_by)),
        recorded AS (
            UPDATE messages.named_lease n SET lock_token = l.tokens[1], ids = l.ids, expires_at = l.lock_expires_at
              FROM (SELECT array_agg(lock_token) AS tokens, array_agg(id) AS ids, max(lock_expires_at) AS lock_expires_at FROM leased) l
             WHERE n.made_by = session_user AND n.lease_name = lease_named.lease_name COLLATE "default" AND l.ids IS NOT NULL)
        SELECT * FROM leased;
        RETURN;
    END IF;
    IF known.queue_name <> lease_named.queue_name THEN
        RAISE EXCEPTION 'the lease name % is in use for queue %', quote_literal(lease_named.lease_name), quote_literal(known.queue_name)
            USING ERRCODE = 'PQ004', HINT = 'Give each stream a name of its own.';
    END IF;
    -- A repeated call has as much time as the first one had.
    until := clock_timestamp() + coalesce(lease_named.lease_for,
                                          (SELECT q.lease_for FROM messages.queue q WHERE q.queue_name = known.queue_name));
    UPDATE messages.named_lease n SET expires_at = until
     WHERE n.made_by = session_user AND n.lease_name = lease_named.lease_name COLLATE "default" AND n.lock_token IS NOT NULL;
    RETURN QUERY
    WITH held AS (
        UPDATE messages.message_rows m SET lock_expires_at = greatest(m.lock_expires_at, until)
         WHERE m.id = ANY (known.ids) AND m.lock_token = known.lock_token AND m.lock_expires_at > clock_timestamp()
        RETURNING m.*)
    SELECT h.id, h.queue_name, h.message, h.headers, h.reference, h.topic, h.group_key, h.priority, h.attempts,
           q.max_attempts, h.requeues, h.created_at, h.lock_token, h.lock_expires_at
      FROM held h JOIN messages.queue q ON q.queue_name = h.queue_name;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('lease name %L', lease_named.lease_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lease_named(text, text, integer, interval, text) IS
    'Leases like lease, but only once for each name; every login has names of its own. A repeated call extends and returns those messages of the name that are still leased, never others. Two concurrent calls get the same messages. PQ001: unknown queue; PQ002: paused; PQ004: bad argument, or the name is in use for another queue; PQ016: a transaction that leased under the name stayed open for more than three seconds, or waits for this one.';
