CREATE OR REPLACE FUNCTION messages.start_dispatch(dispatch_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE messages.dispatch d SET started_at = clock_timestamp(), seen_at = clock_timestamp()
     WHERE d.ctid = (
        SELECT free.ctid FROM messages.dispatch free
         WHERE free.dispatch_id = start_dispatch.dispatch_id AND free.started_at IS NULL AND free.ended_at IS NULL
           -- The name of another queue is not for a limited login.
           AND (NOT messages.session_is_limited() OR free.queue_name IN (SELECT messages.granted_queues('consume')))
           FOR UPDATE SKIP LOCKED);
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION messages.start_dispatch(bigint) IS
    'Records that the run of a dispatch exists: if it is gone later, somebody deleted it. Returns whether that was not recorded before. Records nothing, without waiting, while another transaction is changing the dispatch.';
