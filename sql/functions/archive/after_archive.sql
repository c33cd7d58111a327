CREATE OR REPLACE FUNCTION messages.after_archive(ended messages.ended_message[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dead record;
BEGIN
    FOR dead IN
        INSERT INTO messages.dead_message AS d (id, archived_at, queue_name, result, fingerprint, requeues, group_key)
        SELECT e.id, e.archived_at, e.queue_name, e.result, e.fingerprint, e.requeues, e.group_key FROM unnest(ended) e WHERE e.fingerprint IS NOT NULL
        ON CONFLICT DO NOTHING             -- plain SQL archived it twice
        RETURNING d.id, d.queue_name, d.result
    LOOP
        RAISE WARNING 'dead message: archive id %, queue %, result %', dead.id, dead.queue_name, dead.result;
    END LOOP;
    PERFORM pg_notify('dead_message', min(e.id)::text) FROM unnest(ended) e
      WHERE e.fingerprint IS NOT NULL AND NOT messages.rings_are_paused() GROUP BY e.queue_name;
    -- A dead head that blocks its group stays its head until it is requeued or dismissed.
    PERFORM messages.next_of_groups(q.queue_name, array_agg(DISTINCT e.group_key))
       FROM unnest(ended) e JOIN messages.queue q ON q.queue_name = e.queue_name
      WHERE e.group_key IS NOT NULL AND (e.fingerprint IS NULL OR q.on_dead_head = 'skip') GROUP BY q.queue_name;
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.after_archive(messages.ended_message[]) IS
    'Does what follows when messages were archived: puts dead ones on the work list, warns of each in the server log and rings dead_message with the first archive id of each queue; gives the next message of each group its turn.';
