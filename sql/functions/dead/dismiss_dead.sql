CREATE OR REPLACE FUNCTION messages.dismiss_dead(
    queue_name   text        DEFAULT NULL,
    reason       text        DEFAULT NULL,
    max_messages integer     DEFAULT 1000,
    results      text[]      DEFAULT NULL,
    fingerprints text[]      DEFAULT NULL,
    ids          bigint[]    DEFAULT NULL,
    remedied_by  text        DEFAULT NULL,
    max_requeues integer     DEFAULT NULL,
    reference    text        DEFAULT NULL,
    topic        text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    token uuid;
    taken bigint[];
    done  bigint;
BEGIN
    SELECT min(d.lock_token::text)::uuid, array_agg(d.id)
      INTO token, taken
      FROM messages.lease_dead(dismiss_dead.queue_name, dismiss_dead.max_messages, '1 minute', dismiss_dead.remedied_by,
                               dismiss_dead.results, dismiss_dead.fingerprints, dismiss_dead.ids, dismiss_dead.max_requeues,
                               dismiss_dead.reference, dismiss_dead.topic, dismiss_dead.headers, dismiss_dead.since, dismiss_dead.until) d;
    RETURN QUERY SELECT messages.dismiss(token, taken, dismiss_dead.reason, dismiss_dead.remedied_by);
    GET DIAGNOSTICS done = ROW_COUNT;
    PERFORM messages.record_audit('dismiss_dead', dismiss_dead.queue_name, jsonb_build_object(
        'reason', left(dismiss_dead.reason, 500), 'results', dismiss_dead.results, 'fingerprints', dismiss_dead.fingerprints,
        'ids', dismiss_dead.ids, 'max_requeues', dismiss_dead.max_requeues, 'reference', dismiss_dead.reference,
        'topic', dismiss_dead.topic, 'since', dismiss_dead.since, 'until', dismiss_dead.until), done) WHERE done > 0;
END $$;
COMMENT ON FUNCTION messages.dismiss_dead(text, text, integer, text[], text[], bigint[], text, integer, text, text, jsonb, timestamptz, timestamptz) IS
    'Leases dead messages and dismisses them in one call, and returns their ids. Which ones, and errors, as in lease_dead and dismiss. Each call that dismisses something is an entry of the audit.';
