CREATE OR REPLACE FUNCTION messages.overdue_dispatches(dispatch_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.dispatch_id FROM messages.dispatch d
     WHERE d.dispatch_id = ANY (overdue_dispatches.dispatch_ids) AND d.ended_at IS NULL
       AND coalesce(d.seen_at, d.opened_at) + d.lease_for <= clock_timestamp()
       AND (NOT messages.session_is_limited() OR d.queue_name IN (SELECT messages.granted_queues('consume')))
     ORDER BY d.dispatch_id;
END $$;
COMMENT ON FUNCTION messages.overdue_dispatches(bigint[]) IS
    'Those of these open dispatches that nobody has renewed for as long as their lease lasts: others may have their messages.';
