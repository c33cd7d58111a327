CREATE OR REPLACE FUNCTION messages.check_dead_lease(queue_name text, max_messages integer, results text[], max_requeues integer)
RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_access(check_dead_lease.queue_name, 'consume');
    IF check_dead_lease.queue_name IS NOT NULL
       AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = check_dead_lease.queue_name COLLATE "default") THEN
        PERFORM messages.raise_unknown_queue(check_dead_lease.queue_name);
    END IF;
    IF max_messages IS NULL OR max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', coalesce(max_messages::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 10000.';
    END IF;
    IF NOT results <@ ARRAY['failed', 'rejected', 'lock_expired', 'expired'] THEN
        RAISE EXCEPTION 'results are %', left(results::text, 200)
            USING ERRCODE = 'PQ004', HINT = 'Give some of failed, rejected, lock_expired, expired.';
    END IF;
    PERFORM messages.check_number('max_requeues', max_requeues, 0, 32767);
END $$;
COMMENT ON FUNCTION messages.check_dead_lease(text, integer, text[], integer) IS
    'Raises PQ001 or PQ004 for a bad argument of lease_dead.';
