CREATE OR REPLACE FUNCTION messages.check_dead_lease(queue_name text, results text[], max_requeues integer) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_access(check_dead_lease.queue_name, 'consume');
    PERFORM messages.check_queue(check_dead_lease.queue_name, 'consume') WHERE check_dead_lease.queue_name IS NOT NULL;
    PERFORM messages.check_number('max_requeues', max_requeues, 0, 32767);
    IF NOT results <@ ARRAY['failed', 'rejected', 'lock_expired', 'expired'] THEN
        RAISE EXCEPTION 'results are %', left(results::text, 200)
            USING ERRCODE = 'PQ004', HINT = 'Give some of failed, rejected, lock_expired, expired.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_dead_lease(text, text[], integer) IS
    'Raises 42501, PQ001 or PQ004 for a bad choice of dead messages.';
