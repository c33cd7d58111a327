CREATE OR REPLACE FUNCTION messages.message_archived() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held    record;
    entered bigint[];
BEGIN
    PERFORM messages.check_result(a.result) FROM (SELECT DISTINCT result FROM archived) a;
    -- What could not be requeued, or recorded in the history, would stop whoever comes across it.
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at, a.remedied_at], ARRAY[a.archived_at]),
            messages.check_length('queue_name', a.queue_name, 0, 255), messages.check_length('handled_by', a.handled_by, 0, 1024),
            messages.check_length('remedied_by', a.remedied_by, 0, 255), messages.check_length('fingerprint', a.fingerprint, 0, 255),
            messages.check_headers(a.headers), messages.check_reference(a.reference), messages.check_publish(a.priority, NULL, NULL, NULL, NULL)
       FROM archived a;
    FOR held IN
        SELECT a.queue_name, min(a.id) AS id,
               array_agg(ROW(a.id, a.archived_at, a.queue_name, a.result, coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)),
                             a.requeues, a.group_key)::messages.ended_message) FILTER (WHERE a.result NOT IN ('success', 'cancelled')) AS dead,
               array_agg(DISTINCT a.group_key) FILTER (WHERE a.group_key IS NOT NULL) AS keys
          FROM archived a GROUP BY a.queue_name
    LOOP
        IF held.dead IS NOT NULL THEN
            PERFORM messages.record_dead(held.dead);
        END IF;
        IF held.keys IS NOT NULL THEN
            entered := messages.next_of_groups(held.queue_name, held.keys, '{}');
            IF entered <> '{}' THEN
                PERFORM messages.ring_for(held.queue_name, held.id);
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_archived() IS
    'Trigger of messages.message_archive. Checks what plain SQL inserted, and does what follows when a message was archived.';
