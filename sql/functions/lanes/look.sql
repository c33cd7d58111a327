CREATE OR REPLACE FUNCTION messages.look(queue_name text, wanted integer DEFAULT 1000, began timestamptz DEFAULT clock_timestamp()) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    due    regclass    := (SELECT q.look_due FROM messages.queue q WHERE q.queue_name = look.queue_name COLLATE "default");
    is_due boolean;
    since  timestamptz := began - interval '5 s';
    ended  record;
    more   boolean     := false;
    freed  bigint      := 0;
    step   integer     := 1;
BEGIN
    IF due IS NULL OR current_setting('transaction_read_only')::boolean THEN
        RETURN false;
    END IF;
    -- A time more than a minute ahead was stored before the clock went back.
    is_due := messages.stored_time(due, began + interval '1 min') <= began;
    IF is_due THEN
        PERFORM messages.store_time(due, began + interval '1 s');      -- other sessions do not look meanwhile
        since := '-infinity';
    END IF;
    -- What is due, until enough is free, because nobody else sees what this lets in before its transaction ends. Most timers are of
    -- messages that are finished.
    WHILE freed < wanted AND step <= 1000
          AND EXISTS (SELECT FROM messages.timer t WHERE t.queue_name = look.queue_name COLLATE "default" AND t.at <= began AND t.at > since) LOOP
        ended := messages.end_due(look.queue_name, greatest(step, least(wanted, 1000)), since, began);
        freed := freed + ended.freed;
        more := ended.more;
        EXIT WHEN NOT more;
        step := 10 * step;
    END LOOP;
    IF NOT is_due THEN
        RETURN freed > 0;
    END IF;
    IF freed < wanted THEN
        PERFORM messages.fill_groups(look.queue_name, wanted);
    END IF;
    PERFORM messages.correct_marks(look.queue_name);
    PERFORM messages.pause_rings();
    -- After one that took long, over many leases or dead versions, a hundred times as long passes until the next: a busy queue
    -- looks a second after a look is due.
    PERFORM messages.store_time(due, clock_timestamp() + CASE WHEN more THEN '0' ELSE
        greatest(least(100 * (clock_timestamp() - began), interval '30 s') - interval '1 s', '50 ms') END);
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.look(text, integer, timestamptz) IS
    'Ends what fell due in a queue in the last five seconds, until so many messages are free; and if it is time for that, looks at all of the queue from its beginning: ends what is due, lets messages into groups that have room, and puts each mark at the first ready message. Returns whether something may have become ready.';
