CREATE OR REPLACE FUNCTION messages.renew_marks(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    fresh record;
    level record;
    old   regclass[];
BEGIN
    -- Whoever leases reads a mark, which locks its sequence until the commit; publishers read none. So this waits for the
    -- leases of this queue and for nobody else. It gives way between the attempts, as lock_briefly() does.
    FOR attempt IN 1..21 LOOP
        IF attempt > 20 THEN
            PERFORM messages.raise_in_use(format('queue %L', renew_marks.queue_name));
        END IF;
        BEGIN
            -- No new priority from here on.
            PERFORM FROM messages.queue q WHERE q.queue_name = renew_marks.queue_name COLLATE "default" FOR UPDATE;
            old := ARRAY(
                SELECT p.own_low_water FROM messages.queue_priority p WHERE p.queue_name = renew_marks.queue_name COLLATE "default"
                UNION
                SELECT q.shared_low_water FROM messages.queue q
                 WHERE q.queue_name = renew_marks.queue_name COLLATE "default" AND q.shared_low_water IS NOT NULL);
            FOR place IN 1..cardinality(old) LOOP
                EXECUTE format('ALTER SEQUENCE %s CACHE 1', old[place]);   -- changes nothing: LOCK TABLE takes no sequence
            END LOOP;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(random() * attempt / 20);
        END;
    END LOOP;
    FOR level IN SELECT p.* FROM messages.queue_priority p WHERE p.queue_name = renew_marks.queue_name COLLATE "default" LOOP
        SELECT * INTO fresh FROM messages.create_marks();
        INSERT INTO messages.unused_sequence (sequence) VALUES (level.own_low_water), (level.own_sweep_due);
        UPDATE messages.queue_priority p
           SET own_low_water = fresh.low_water, own_sweep_due = fresh.sweep_due,
               low_water = CASE WHEN p.low_water = p.own_low_water THEN fresh.low_water ELSE p.low_water END,
               sweep_due = CASE WHEN p.sweep_due = p.own_sweep_due THEN fresh.sweep_due ELSE p.sweep_due END
         WHERE p.queue_name = level.queue_name AND p.priority = level.priority;
    END LOOP;
    FOR level IN SELECT q.* FROM messages.queue q WHERE q.queue_name = renew_marks.queue_name COLLATE "default" AND q.shared_low_water IS NOT NULL LOOP
        SELECT * INTO fresh FROM messages.create_marks();
        INSERT INTO messages.unused_sequence (sequence) VALUES (level.shared_low_water), (level.shared_sweep_due);
        UPDATE messages.queue q SET shared_low_water = fresh.low_water, shared_sweep_due = fresh.sweep_due
         WHERE q.queue_name = renew_marks.queue_name COLLATE "default";
        UPDATE messages.queue_priority p SET low_water = fresh.low_water, sweep_due = fresh.sweep_due
         WHERE p.queue_name = renew_marks.queue_name COLLATE "default" AND p.low_water = level.shared_low_water;
    END LOOP;
    -- Never set again, so that a lease which read the queue before the commit sees that it has to read it again.
    PERFORM setval(mark, 1, false) FROM unnest(old) AS mark;
END $$;
COMMENT ON FUNCTION messages.renew_marks(text) IS
    'Waits until no transaction is open that leased from the queue, and keeps others out until the commit. Gives all priorities new marks: a lease that finds the old ones reads the queue again. PQ016: a transaction that leased stayed open.';
