CREATE OR REPLACE FUNCTION messages.start_groups(queue_name text, group_keys text[], ids bigint[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
AS $$
#variable_conflict use_column
DECLARE
    started text[];
    failed  integer := 0;
BEGIN
    -- An INSERT waits for whoever inserts the same row, until that transaction ends; two that start groups in opposite
    -- order would wait for each other. So give up after some milliseconds: what could not be started waits in its group.
    BEGIN
        WITH head AS (
            INSERT INTO messages.group_head (queue_name, group_key, id)
            SELECT start_groups.queue_name, g.group_key, g.id FROM unnest(group_keys, ids) AS g (group_key, id)
             ORDER BY g.group_key COLLATE "C"
            ON CONFLICT DO NOTHING RETURNING group_key)
        SELECT array_agg(h.group_key) INTO started FROM head h;
        RETURN coalesce(started, '{}');
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        started := '{}';
    END;
    -- Few are worth the trouble to find out which it was.
    FOR place IN 1..cardinality(group_keys) LOOP
        EXIT WHEN failed = 5 OR cardinality(group_keys) NOT BETWEEN 2 AND 64;
        BEGIN
            INSERT INTO messages.group_head (queue_name, group_key, id)
            VALUES (start_groups.queue_name, group_keys[place], ids[place]) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                started := started || group_keys[place];
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            failed := failed + 1;
        END;
    END LOOP;
    RETURN started;
END $$;
COMMENT ON FUNCTION messages.start_groups(text, text[], bigint[]) IS
    'Makes these messages the heads of groups that have none, and returns the groups that got a head; the others have one by now, or another transaction is starting them. Waits for some milliseconds at most.';
