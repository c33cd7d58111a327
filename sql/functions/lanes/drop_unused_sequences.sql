CREATE OR REPLACE FUNCTION messages.drop_unused_sequences() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms'
AS $$
DECLARE
    unused record;
BEGIN
    FOR unused IN
        SELECT u.sequence, c.oid IS NOT NULL AS exists
          FROM messages.unused_sequence u LEFT JOIN pg_class c ON c.oid = u.sequence
         WHERE u.since <= clock_timestamp() - interval '1 hour' ORDER BY u.since LIMIT 1000     -- each is locked until the commit
    LOOP
        BEGIN
            IF unused.exists THEN
                EXECUTE format('DROP SEQUENCE %s', unused.sequence);
            END IF;
            DELETE FROM messages.unused_sequence u WHERE u.sequence = unused.sequence;
        EXCEPTION WHEN lock_not_available THEN
            NULL;                          -- a dump reads it: the next upkeep drops it
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.drop_unused_sequences() IS
    'Drops sequences of queues that were dropped more than an hour ago, a thousand at most, except those that somebody reads.';
