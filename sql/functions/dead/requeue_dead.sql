CREATE OR REPLACE FUNCTION messages.requeue_dead(
    queue_name   text     DEFAULT NULL,
    max_messages integer  DEFAULT 1000,
    results      text[]   DEFAULT NULL,
    max_requeues integer  DEFAULT NULL,
    delay        interval DEFAULT '0',
    remedied_by  text     DEFAULT NULL,
    fingerprints text[]   DEFAULT NULL,
    ids          bigint[] DEFAULT NULL,
    reference    text     DEFAULT NULL,
    topic        text     DEFAULT NULL,
    headers      jsonb    DEFAULT NULL,
    since        timestamptz DEFAULT NULL,
    until        timestamptz DEFAULT NULL,
    messages     jsonb    DEFAULT NULL
) RETURNS TABLE (id bigint, new_id bigint)
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
      FROM messages.lease_dead(requeue_dead.queue_name, requeue_dead.max_messages, '1 minute', requeue_dead.remedied_by,
                               coalesce(requeue_dead.results, CASE WHEN coalesce(requeue_dead.fingerprints::text, requeue_dead.ids::text) IS NULL
                                                                   THEN ARRAY['failed', 'lock_expired'] END),
                               requeue_dead.fingerprints, requeue_dead.ids, requeue_dead.max_requeues,
                               requeue_dead.reference, requeue_dead.topic, requeue_dead.headers, requeue_dead.since, requeue_dead.until) d;
    RETURN QUERY SELECT r.id, r.new_id FROM messages.requeue(token, taken, requeue_dead.messages, requeue_dead.delay, requeue_dead.remedied_by) r;
    GET DIAGNOSTICS done = ROW_COUNT;
    PERFORM messages.record_audit('requeue_dead', requeue_dead.queue_name, jsonb_build_object(
        'results', requeue_dead.results, 'fingerprints', requeue_dead.fingerprints, 'ids', requeue_dead.ids,
        'max_requeues', requeue_dead.max_requeues, 'delay', nullif(requeue_dead.delay, '0'), 'reference', requeue_dead.reference,
        'topic', requeue_dead.topic, 'since', requeue_dead.since, 'until', requeue_dead.until,
        'new_bodies', (SELECT nullif(count(*), 0) FROM jsonb_object_keys(requeue_dead.messages))), done) WHERE done > 0;
END $$;
COMMENT ON FUNCTION messages.requeue_dead(text, integer, text[], integer, interval, text, text[], bigint[], text, text, jsonb, timestamptz, timestamptz, jsonb) IS
    'Leases dead messages and requeues them in one call, with a new body where messages {"id": body} has one; without results, fingerprints and ids, those that ended as failed or lock_expired. Leaves those that have already been requeued max_requeues times. Which ones, and errors, as in lease_dead. Each call that requeues something is an entry of the audit, with the number of new bodies and none of them.';
