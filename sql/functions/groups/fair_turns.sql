CREATE OR REPLACE FUNCTION messages.fair_turns(queue_name text, ids bigint[]) RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    lane   record;
    places timestamptz[];
    turns  timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(ids)]);
BEGIN
    FOR lane IN
        SELECT m.priority, array_agg(m.fair_key ORDER BY e.number) AS keys, array_agg(e.number ORDER BY e.number) AS numbers
          FROM unnest(ids) WITH ORDINALITY AS e (id, number) JOIN messages.message_rows m ON m.id = e.id
         WHERE m.fair_key IS NOT NULL AND m.due_at <= moment GROUP BY m.priority
    LOOP
        places := messages.fair_places(fair_turns.queue_name, lane.priority, lane.keys);
        FOR nth IN 1 .. cardinality(places) LOOP
            turns[lane.numbers[nth]] := places[nth];
        END LOOP;
    END LOOP;
    RETURN turns;
END $$;
COMMENT ON FUNCTION messages.fair_turns(text, bigint[]) IS
    'The places that messages get which have waited in their groups, where keys take turns: the next ones of their keys. NULL for one that has no key, or a delay.';
