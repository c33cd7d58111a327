CREATE OR REPLACE FUNCTION messages.check_lease(queue_name text, paused boolean, max_messages integer, lease_for interval) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_access(queue_name, 'consume');
    IF paused IS NULL THEN
        PERFORM messages.raise_unknown_queue(queue_name);
    ELSIF paused THEN
        RAISE EXCEPTION 'queue % is paused', quote_literal(queue_name)
            USING ERRCODE = 'PQ002', HINT = format('Resume it: SELECT messages.resume_queue(%L)', queue_name);
    END IF;
    PERFORM messages.check_number('max_messages', max_messages, 1, 10000, required => true),
            messages.check_duration('lease_for', lease_for, '1 millisecond', '12 hours');
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.check_lease(text, boolean, integer, interval) IS
    'True, or raises PQ001 for a queue whose paused is NULL because there is none, PQ002 or 42501 if this login cannot lease from it now, PQ004 for a bad argument.';
