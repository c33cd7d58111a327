CREATE OR REPLACE FUNCTION messages.record_dead(dead messages.ended_message[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new record;
BEGIN
    FOR new IN
        INSERT INTO messages.dead_message AS d (id, archived_at, queue_name, result, fingerprint, requeues, group_key)
        SELECT e.id, e.archived_at, e.queue_name, e.result, e.fingerprint, e.requeues, e.group_key FROM unnest(dead) e
        ON CONFLICT DO NOTHING             -- plain SQL archived it twice
        RETURNING d.id, d.queue_name, d.result
    LOOP
        RAISE WARNING 'dead message: archive id %, queue %, result %', new.id, new.queue_name, new.result;
    END LOOP;
    IF NOT messages.rings_are_paused() THEN
        PERFORM pg_notify('dead_message', min(e.id)::text) FROM unnest(dead) e GROUP BY e.queue_name;
    END IF;
END $$;
COMMENT ON FUNCTION messages.record_dead(messages.ended_message[]) IS
    'Puts dead messages on the work list, warns of each in the server log, and rings dead_message with the first archive id of each queue.';
