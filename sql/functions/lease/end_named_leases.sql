CREATE OR REPLACE FUNCTION messages.end_named_leases(stream text, queue_name text, before_batch bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    forgotten bigint;
BEGIN
    PERFORM messages.check_access(end_named_leases.queue_name, 'consume');
    -- The name stays until forget() deletes it, so that a straggler of an old batch takes nothing under it.
    UPDATE messages.claim c SET lock_token = NULL, ids = '{}'
     WHERE split_part(c.claim, '/', 1) = end_named_leases.stream AND c.queue_name = end_named_leases.queue_name AND c.lock_token IS NOT NULL
       AND CASE WHEN split_part(c.claim, '/', 2) ~ '^[0-9]{1,18}$'
                THEN split_part(c.claim, '/', 2)::bigint < end_named_leases.before_batch END;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;
COMMENT ON FUNCTION messages.end_named_leases(text, text, bigint) IS
    'Forgets what the claims STREAM/BATCH/PARTITION of a stream took, for batches before this one, which are done; how many there were. Their leases stay as they are.';
