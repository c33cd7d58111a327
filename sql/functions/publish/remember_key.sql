CREATE OR REPLACE FUNCTION messages.remember_key(queue_name text, dedup_key text, id bigint, moment timestamptz, forget timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    known bigint;
BEGIN
    LOOP
        INSERT INTO messages.dedup AS d (queue_name, dedup_key, id, expires_at)
        VALUES (remember_key.queue_name, remember_key.dedup_key, remember_key.id, remember_key.forget)
        ON CONFLICT (queue_name, dedup_key) DO UPDATE SET id = excluded.id, expires_at = excluded.expires_at
         WHERE d.expires_at <= remember_key.moment
        RETURNING d.id INTO known;
        IF NOT FOUND THEN
            SELECT d.id INTO known FROM messages.dedup d
             WHERE d.queue_name = remember_key.queue_name COLLATE "default" AND d.dedup_key = remember_key.dedup_key COLLATE "default" FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;                   -- or it expired just now
    END LOOP;
    RETURN known;
END $$;
COMMENT ON FUNCTION messages.remember_key(text, text, bigint, timestamptz, timestamptz) IS
    'Remembers the id of a message under its dedup_key until forget, and returns it; or the id that is remembered already. Waits for the end of a transaction that publishes under the key.';
