CREATE OR REPLACE FUNCTION messages.consume(queue_name text, max_messages integer DEFAULT 1, handled_by text DEFAULT NULL)
RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    token  uuid    := gen_random_uuid();
    wanted integer := consume.max_messages;
    taken  integer := 0;
    first  record;
    rest   record;
BEGIN
    -- A lease and its archive in one call: nobody else sees the lease, so it needs no timer.
    first := messages.take_first(consume.queue_name, wanted, NULL);
    FOR try IN 1 .. 2 LOOP
        IF first.ids IS NOT NULL THEN
            RETURN QUERY
            UPDATE messages.message_rows m
               SET lock_expires_at = 'infinity', leased_at = first.moment, lock_token = token, attempts = least(m.attempts + 1, 32767)
              FROM unnest(first.tids) AS f (tid) WHERE m.ctid = f.tid
            RETURNING m.id, m.queue_name, m.message, m.headers, m.reference, m.topic, m.group_key, m.priority, m.attempts,
                      first.max_attempts, m.requeues, m.created_at, NULL::uuid, NULL::timestamptz;
            PERFORM messages.archive(token, first.ids, handled_by => coalesce(consume.handled_by, session_user));
            taken := taken + cardinality(first.ids);
        END IF;
        EXIT WHEN try = 2 OR taken = wanted AND taken > 0;
        rest := messages.prepare_lease(consume.queue_name, wanted - taken, first.moment, consumes => true);
        EXIT WHEN rest.wanted = 0;
        first := messages.take_first(consume.queue_name, rest.wanted, rest.moment);
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.consume(text, integer, text) IS
    'Takes messages out and archives them as success in the caller''s transaction: effects in the same transaction happen exactly once; a rollback gives the messages back. max_leased does not apply. Errors as in lease.';
