CREATE OR REPLACE FUNCTION messages.end_named_leases(stream text, queue_name text, before_batch bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    ended bigint;
BEGIN
    PERFORM messages.check_access(end_named_leases.queue_name, 'consume');
    -- The name stays for a day, so that a late task of an old batch leases nothing under it.
    UPDATE messages.named_lease n SET lock_token = NULL, ids = '{}'
     WHERE split_part(n.lease_name, '/', 1) = end_named_leases.stream AND n.queue_name = end_named_leases.queue_name COLLATE "default"
       AND n.made_by = session_user AND n.lock_token IS NOT NULL
       AND CASE WHEN split_part(n.lease_name, '/', 2) ~ '^[0-9]{1,18}$'
                THEN split_part(n.lease_name, '/', 2)::bigint < end_named_leases.before_batch END;
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a lease of stream %L', end_named_leases.stream));
END $$;
COMMENT ON FUNCTION messages.end_named_leases(text, text, bigint) IS
    'Ends the leases STREAM/BATCH/PARTITION of this login for the batches of a stream before this one, and returns how many there were. Nothing can be leased under those names any more; their messages stay leased. PQ016: another transaction has one of them for more than three seconds.';
