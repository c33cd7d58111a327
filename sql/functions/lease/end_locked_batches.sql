CREATE OR REPLACE FUNCTION messages.end_locked_batches(queue_name text, lock_token uuid DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    freed  bigint      := 0;
    batch  messages.locked_batch;
    locked bigint[];
    level  record;
BEGIN
    FOR batch IN
        SELECT b.* FROM messages.locked_batch b
         WHERE b.queue_name = end_locked_batches.queue_name COLLATE "default"
           AND CASE WHEN end_locked_batches.lock_token IS NOT NULL THEN b.lock_token = end_locked_batches.lock_token
                    ELSE pg_try_advisory_xact_lock(hashtextextended('messages.locked_batch.' || b.lock_token, 0)) END
    LOOP
        IF end_locked_batches.lock_token IS NULL THEN
            locked := ARRAY(SELECT m.id FROM messages.message m
                             WHERE m.id = ANY (batch.ids) AND m.queue_name = batch.queue_name ORDER BY m.id FOR UPDATE SKIP LOCKED);
            -- Somebody works on one of them already: whoever asks next finds out how that ends.
            CONTINUE WHEN EXISTS (SELECT FROM messages.message m WHERE m.id = ANY (batch.ids) AND m.queue_name = batch.queue_name
                                                                   AND m.id <> ALL (locked));
        END IF;
        DELETE FROM messages.locked_batch b WHERE b.lock_token = batch.lock_token;
        CONTINUE WHEN NOT FOUND;                  -- it ended by itself a moment ago
        freed := freed + 1;
        UPDATE messages.message m SET attempts = least(m.attempts + 1, 32767) WHERE m.id = ANY (locked) AND m.lock_expires_at IS NULL;
        -- After the last attempt as if its lease had ended: a sweep that is due now archives it.
        UPDATE messages.message m
           SET lock_expires_at = moment, leased_at = batch.locked_at, lock_token = batch.lock_token, locked_by = batch.locked_by,
               attempts = least(m.attempts + (m.lock_expires_at IS NOT NULL)::integer, 32767)
          FROM messages.queue q
         WHERE m.id = ANY (locked) AND q.queue_name = m.queue_name
           AND coalesce(m.lock_expires_at <= moment, m.attempts >= q.max_attempts);
        FOR level IN
            SELECT m.priority, min(m.visible_at) AS lowest, p.low_water, p.sweep_due
              FROM messages.message m JOIN messages.queue_priority p ON p.queue_name = m.queue_name AND p.priority = m.priority
             WHERE m.id = ANY (batch.ids) AND m.queue_name = batch.queue_name
             GROUP BY m.priority, p.low_water, p.sweep_due
        LOOP
            IF level.lowest < messages.stored_moment(level.low_water) THEN
                PERFORM messages.store_moment(level.low_water, level.lowest);
            END IF;
            PERFORM messages.store_moment(level.sweep_due, moment);
        END LOOP;
    END LOOP;
    RETURN freed;
END $$;
COMMENT ON FUNCTION messages.end_locked_batches(text, uuid) IS
    'Does what free_locked_batches does, for whoever may: the upkeep does it for all queues, whatever its login may consume.';
