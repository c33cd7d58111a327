CREATE OR REPLACE FUNCTION messages.message_archived() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_result(a.result) FROM (SELECT DISTINCT result FROM archived) a;
    PERFORM messages.check_times(a.created_at, a.archived_at), messages.check_times(a.leased_at, a.archived_at) FROM archived a;
    PERFORM messages.after_archive(array_agg(ROW(
        a.id, a.archived_at, a.queue_name, a.result,
        CASE WHEN a.result <> 'success' THEN coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)) END,
        a.requeues, a.group_key, a.headers ? 'awaited')::messages.ended_message)) FROM archived a;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_archived() IS
    'Trigger of messages.message_archive. Checks what plain SQL inserted, and does what follows when a message was archived.';
