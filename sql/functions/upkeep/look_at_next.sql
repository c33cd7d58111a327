CREATE OR REPLACE FUNCTION messages.look_at_next(INOUT queue_name text, OUT freed bigint, OUT archived bigint, OUT rung bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    given text := coalesce(queue_name, '');
    here  text;
    more  boolean;
BEGIN
    here := least((SELECT m.queue_name FROM messages.message_rows m WHERE m.queue_name >= given ORDER BY m.queue_name LIMIT 1),
                  (SELECT t.queue_name FROM messages.timer t WHERE t.queue_name >= given ORDER BY t.queue_name LIMIT 1));
    freed := 0;
    archived := 0;
    rung := 0;
    -- What fails for one queue must not keep the others from being looked at.
    BEGIN
        PERFORM messages.mend_lanes(here);
        SELECT * INTO freed, archived, more FROM messages.end_due(here, 5000);
        PERFORM messages.look(here) WHERE NOT more;
        rung := coalesce((SELECT messages.ring(here, 100) FROM messages.queue q
                           WHERE q.queue_name = here AND NOT more AND q.notify <> 'off' AND NOT q.paused AND NOT messages.rings_are_paused()), 0);
        PERFORM messages.record_upkeep_step('look_at_next', here);
    EXCEPTION WHEN OTHERS THEN
        more := false;
        PERFORM messages.record_upkeep_step('look_at_next', coalesce(here, ''), SQLSTATE, SQLERRM);
    END;
    queue_name := CASE WHEN more THEN here ELSE
        least((SELECT m.queue_name FROM messages.message_rows m WHERE m.queue_name > here ORDER BY m.queue_name LIMIT 1),
              (SELECT t.queue_name FROM messages.timer t WHERE t.queue_name > here ORDER BY t.queue_name LIMIT 1)) END;
END $$;
COMMENT ON FUNCTION messages.look_at_next(text) IS
    'The first part of an upkeep, in transactions that stay short: ends what is due in the first queue from this name on that has messages, 5,000 of them at most, rings again for what waits in it, and returns the name for the next call, which is NULL after the last. Begin with an empty name. An error is recorded for health(), and the next queue follows.';
