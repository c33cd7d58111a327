CREATE OR REPLACE FUNCTION messages.check_lease(queue_name text, paused boolean, max_messages integer, lease_for interval) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
       AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
        PERFORM messages.check_access(queue_name, 'consume');
    END IF;
    IF paused THEN
        RAISE EXCEPTION 'queue % is paused', quote_literal(queue_name)
            USING ERRCODE = 'PQ002', HINT = format('Resume it: SELECT messages.resume_queue(%L)', queue_name);
    END IF;
    IF max_messages IS NULL OR max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', coalesce(max_messages::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 10000.';
    END IF;
    PERFORM messages.check_duration('lease_for', lease_for, '1 millisecond', '12 hours');
END $$;
COMMENT ON FUNCTION messages.check_lease(text, boolean, integer, interval) IS
    'Raises PQ002 or 42501 if this login cannot lease from the queue now, PQ004 for a bad argument.';
