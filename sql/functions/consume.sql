CREATE OR REPLACE FUNCTION messages.consume(queue_name text, max_messages integer DEFAULT 1, handled_by text DEFAULT NULL)
RETURNS SETOF messages.leased_message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    policy record;
    places tid[];
BEGIN
    SELECT * INTO policy FROM messages.consumable_queue(consume.queue_name, consume.max_messages);
    places := messages.take(consume.queue_name, consume.max_messages, policy.max_attempts);
    IF places = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM messages.message m WHERE m.ctid = ANY (places) RETURNING m.*),
    archived AS (
        INSERT INTO messages.message_archive (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                              queue_name, result, handled_by, reference, headers, message)
        SELECT g.id, g.created_at, clock_timestamp(), g.requeued_from, g.priority, g.attempts + 1, g.requeues,
               g.queue_name, 'success', coalesce(consume.handled_by, session_user), g.reference, g.headers, g.message
          FROM gone g)
    SELECT g.id, g.queue_name, g.message, g.headers, g.reference, g.priority, (g.attempts + 1)::smallint,
           policy.max_attempts, g.requeues, g.created_at, NULL::uuid, NULL::timestamptz
      FROM gone g ORDER BY g.priority DESC, g.visible_at, g.id;
END $$;
COMMENT ON FUNCTION messages.consume(text, integer, text) IS
    'Takes messages out and archives them as success in the caller''s transaction: effects in the same transaction happen exactly once; a rollback gives the messages back. Errors as lease.';
