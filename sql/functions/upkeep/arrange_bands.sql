CREATE OR REPLACE FUNCTION messages.arrange_bands(queue_name text, joining smallint[] DEFAULT '{}', leaving smallint[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_bitmapscan = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    shared record;
    number integer;
BEGIN
    -- All or nothing, without waiting: whoever is arranging them now does it for everybody. With an older snapshot the
    -- rows may have changed since.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    SELECT count(*) INTO number FROM (
        SELECT FROM messages.queue_priority p WHERE p.queue_name = arrange_bands.queue_name COLLATE "default" FOR UPDATE SKIP LOCKED) locked;
    IF number < (SELECT count(*) FROM messages.queue_priority p WHERE p.queue_name = arrange_bands.queue_name COLLATE "default") THEN
        RETURN;
    END IF;
    SELECT q.shared_low_water AS low_water, q.shared_sweep_due AS sweep_due INTO shared
      FROM messages.queue q WHERE q.queue_name = arrange_bands.queue_name COLLATE "default" FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF shared.low_water IS NULL THEN
        SELECT * INTO shared FROM messages.create_marks();
        UPDATE messages.queue q SET shared_low_water = shared.low_water, shared_sweep_due = shared.sweep_due
         WHERE q.queue_name = arrange_bands.queue_name COLLATE "default";
    END IF;
    WITH member AS (
        SELECT p.priority, p.follows OR p.band IS NOT NULL AS shared,
               (p.follows OR p.band IS NOT NULL
                OR p.priority = ANY (arrange_bands.joining) AND coalesce(p.alone_since < moment - interval '10 s', true)
                   AND NOT EXISTS (SELECT FROM messages.message m
                                    WHERE m.queue_name = p.queue_name AND m.priority = p.priority AND m.visible_at <= moment))
               AND p.priority <> ALL (arrange_bands.leaving) AS shares
          FROM messages.queue_priority p WHERE p.queue_name = arrange_bands.queue_name COLLATE "default"),
    -- A priority of its own between them divides the band, so that leases take them in their order.
    divided AS (
        SELECT m.*, count(*) FILTER (WHERE NOT m.shares) OVER (ORDER BY m.priority DESC) AS part FROM member m),
    arranged AS (
        SELECT d.*, d.priority < max(d.priority) OVER (PARTITION BY d.part, d.shares) AS follows,
               array_agg(d.priority) OVER (PARTITION BY d.part, d.shares ORDER BY d.priority DESC
                                           ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS band
          FROM divided d)
    UPDATE messages.queue_priority p
       SET low_water = CASE WHEN a.shares THEN shared.low_water ELSE p.own_low_water END,
           sweep_due = CASE WHEN a.shares THEN shared.sweep_due ELSE p.own_sweep_due END,
           follows = a.shares AND a.follows,
           band = CASE WHEN a.shares AND NOT a.follows THEN a.band END,
           alone_since = CASE WHEN a.shares THEN NULL WHEN a.shared THEN moment ELSE p.alone_since END
      FROM arranged a
     WHERE p.queue_name = arrange_bands.queue_name COLLATE "default" AND p.priority = a.priority
       AND (p.follows, p.band) IS DISTINCT FROM (a.shares AND a.follows, CASE WHEN a.shares AND NOT a.follows THEN a.band END);
END $$;
COMMENT ON FUNCTION messages.arrange_bands(text, smallint[], smallint[]) IS
    'Lets priorities of a queue that have no message share the marks of the band, and gives those that leave it their own again. Does nothing while another session does it.';
