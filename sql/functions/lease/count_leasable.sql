CREATE OR REPLACE FUNCTION messages.count_leasable(queue_name text, max_leased integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    -- Until the commit, nobody else leases from this queue, so that the count is exact.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('messages.counted_lease.' || count_leasable.queue_name, 0)) THEN
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended('messages.counted_lease.' || count_leasable.queue_name, 0));
        EXCEPTION WHEN deadlock_detected THEN
            RETURN 0;                      -- whoever holds it waits for this transaction: no lease now
        END;
    END IF;
    DELETE FROM messages.counted_lease WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM messages.counted_lease c
         WHERE c.queue_name = count_leasable.queue_name COLLATE "default"
           AND NOT EXISTS (SELECT FROM messages.message m
                            WHERE m.id = c.id AND m.lock_token IS NOT DISTINCT FROM c.lock_token AND m.lock_expires_at > clock_timestamp())
           FOR UPDATE SKIP LOCKED));       -- plain SQL is about to lease what is locked
    RETURN greatest(0, count_leasable.max_leased - (
        SELECT count(*) FROM messages.counted_lease c WHERE c.queue_name = count_leasable.queue_name COLLATE "default"));
END $$;
COMMENT ON FUNCTION messages.count_leasable(text, integer) IS
    'How many more messages of a queue with a max_leased may be leased; keeps other leases of this queue out until the commit. 0 if whoever leases from it waits for this transaction.';
