CREATE OR REPLACE FUNCTION messages.look(queue_name text, max_messages integer DEFAULT 1000) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    due   regclass    := (SELECT q.look_due FROM messages.queue q WHERE q.queue_name = look.queue_name COLLATE "default");
    ended boolean;
    more  boolean;
    pause interval;
BEGIN
    IF due IS NULL OR current_setting('transaction_read_only')::boolean THEN
        RETURN false;
    END IF;
    -- Looks may be half a minute apart, or take long themselves. What has just fallen due comes back at once.
    SELECT freed + archived > 0 INTO ended FROM messages.end_due(look.queue_name, look.max_messages, due_since => began - interval '5 s');
    -- A caller that has already freed something looks only if a look is a second overdue. A time more than a minute ahead was stored before the
    -- clock went back.
    IF messages.stored_time(due, began + interval '1 min') > began - (CASE WHEN ended THEN interval '1 s' ELSE '0' END) THEN
        RETURN ended;
    END IF;
    PERFORM messages.store_time(due, began + interval '1 s');      -- other sessions do not look meanwhile
    more := (messages.end_due(look.queue_name, look.max_messages)).more;
    PERFORM messages.free_group_heads(look.queue_name);
    -- Each mark is put where the first ready message is: some were published long before their commit, or leased by a transaction
    -- that was rolled back. Where there is none, nobody has to walk over what is leased.
    PERFORM messages.store_time(l.mark, coalesce(first.at, began - interval '1 s'))
       FROM messages.lane l
       LEFT JOIN LATERAL (
         SELECT m.visible_at AS at FROM messages.message_rows m
          WHERE m.queue_name = l.queue_name AND m.priority = l.priority AND m.visible_at <= began
            AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > began)
          ORDER BY m.visible_at LIMIT 1) first ON true
      WHERE l.queue_name = look.queue_name COLLATE "default" AND l.mark IS NOT NULL
        AND CASE WHEN first.at IS NULL THEN messages.stored_time(l.mark, began) < began - interval '2 s'
                 ELSE first.at <> messages.stored_time(l.mark) END;
    PERFORM messages.make_lane(l.queue_name, l.priority)
       FROM messages.lane l
      -- Not EXISTS, which the planner may answer by a walk over the whole queue.
      CROSS JOIN LATERAL (SELECT FROM messages.message_rows m WHERE m.queue_name = l.queue_name AND m.priority = l.priority LIMIT 1) used
      WHERE l.queue_name = look.queue_name COLLATE "default" AND l.mark IS NULL;
    PERFORM messages.pause_rings();
    -- After one that took long, over many leases or dead versions, a hundred times as long passes until the next: a busy queue
    -- looks a second after a look is due.
    pause := least(100 * (clock_timestamp() - began), interval '30 s') - interval '1 s';
    PERFORM messages.store_time(due, clock_timestamp() + CASE WHEN more THEN '0' ELSE greatest(pause, '50 ms') END);
    RETURN true;
END $$;
COMMENT ON FUNCTION messages.look(text, integer) IS
    'Ends the leases and delays of a queue that fell due in the last five seconds; and if it is time for that, looks at all of the queue from its beginning: ends what is due, makes heads of groups ready that nobody else did, and puts each mark at the first ready message. Ends about max_messages at a time. Returns whether something may have become ready.';
