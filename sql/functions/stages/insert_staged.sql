CREATE OR REPLACE FUNCTION messages.insert_staged(stage_id text, winners jsonb, queue_name text, dedup_window interval) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment    timestamptz;
    stage     text;
    target    record;
    wanted    bigint;
    staged    bigint  := 0;
    in_order  boolean := false;
    ranked    text;
    taken     bigint := 0;
    published bigint := 0;
BEGIN
    stage := messages.lock_stage(insert_staged.stage_id);
    SELECT coalesce(sum(w.rows), 0) INTO wanted FROM jsonb_to_recordset(insert_staged.winners) AS w (rows bigint);
    IF stage IS NOT NULL THEN
        FOR target IN EXECUTE format(
            'SELECT coalesce(nullif(s.queue_name, ''''), $2, '''') AS queue_name, count(*) AS number, count(s.group_key) + count(s.dedup_key) AS keys
               FROM %s s JOIN jsonb_to_recordset($1) AS w (attempt bigint) USING (attempt) GROUP BY 1 ORDER BY 1', stage)
            USING insert_staged.winners, insert_staged.queue_name
        LOOP
            PERFORM messages.check_queue(target.queue_name, 'publish');
            staged := staged + target.number;
            in_order := in_order OR target.keys > 0;
        END LOOP;
    END IF;
    IF staged <> wanted THEN
        RAISE EXCEPTION 'rows that the tasks staged: %; rows that are left: %; nothing was published', wanted, staged
            USING ERRCODE = 'PQ012', HINT = 'PostgreSQL crashed in the meantime, or the stage was more than a day old. Run the job again.';
    END IF;
    IF staged > 0 THEN
        moment := clock_timestamp();
        ranked := format('SELECT s.*, coalesce(nullif(s.queue_name, ''''), $2) AS target, w.before + s.ordinal AS place
                            FROM %s s JOIN (SELECT r.attempt, sum(r.rows) OVER (ORDER BY r.partition) - r.rows AS before
                                              FROM jsonb_to_recordset($1) AS r (partition integer, attempt bigint, rows bigint)) w
                                      USING (attempt)', stage);
        IF in_order THEN
            -- Take the keys in the same order as publish_deduplicated does, so that two publishers cannot deadlock.
            EXECUTE format($insert$
                WITH numbered AS MATERIALIZED (
                    SELECT o.*, nextval('messages.message_id_seq') AS id FROM (%s ORDER BY place) o),
                remembered AS (
                    INSERT INTO messages.dedup AS d (queue_name, dedup_key, id, expires_at)
                    SELECT DISTINCT ON (n.target COLLATE "C", n.dedup_key COLLATE "C")
                           n.target, n.dedup_key, n.id, $3 + coalesce($4, q.dedup_window)
                      FROM numbered n JOIN messages.queue q ON q.queue_name = n.target
                     WHERE n.dedup_key IS NOT NULL
                     ORDER BY n.target COLLATE "C", n.dedup_key COLLATE "C", n.place
                    ON CONFLICT (queue_name, dedup_key) DO UPDATE SET id = excluded.id, expires_at = excluded.expires_at
                     WHERE d.expires_at <= $3
                    RETURNING d.id),
                published AS (
                INSERT INTO messages.message (id, queue_name, message, priority, created_at, visible_at, expires_at, headers, reference,
                                              topic, group_key)
                SELECT n.id, n.target, n.message, coalesce(n.priority, 4), $3, greatest(n.visible_at, $3) + n.place * interval '1 us',
                       n.expires_at, n.headers, n.reference, n.topic, n.group_key
                  FROM numbered n
                 WHERE n.dedup_key IS NULL OR n.id IN (SELECT r.id FROM remembered r)
                 ORDER BY n.id
                RETURNING 1)
                SELECT (SELECT count(*) FROM numbered), (SELECT count(*) FROM published)
                $insert$, ranked) INTO taken, published USING insert_staged.winners, insert_staged.queue_name, moment, insert_staged.dedup_window;
        ELSE
            -- The rows are not sorted, because leases follow visible_at anyway: sorting a million bodies costs as much as inserting them.
            EXECUTE format($insert$
                INSERT INTO messages.message (queue_name, message, priority, created_at, visible_at, expires_at, headers, reference, topic)
                SELECT r.target, r.message, coalesce(r.priority, 4), $3, greatest(r.visible_at, $3) + r.place * interval '1 us',
                       r.expires_at, r.headers, r.reference, r.topic
                  FROM (%s) r
                $insert$, ranked) USING insert_staged.winners, insert_staged.queue_name, moment;
            GET DIAGNOSTICS published = ROW_COUNT;
            taken := published;
        END IF;
        -- Rows are only ever added, so as many rows are the same rows: those whose queues were checked above.
        IF taken <> staged THEN
            RAISE EXCEPTION 'rows that the tasks staged: %; rows that are there now: %; nothing was published', staged, taken
                USING ERRCODE = 'PQ012', HINT = 'Something writes under the number of an attempt that has ended. Run the job again.';
        END IF;
    END IF;
    RETURN jsonb_build_object('rows', staged, 'published', published, 'duplicates', staged - published);
END $$;
COMMENT ON FUNCTION messages.insert_staged(text, jsonb, text, interval) IS
    'Publishes the rows of the attempts in winners, in their order; returns how many rows there were, how many of them were published and how many were duplicates. PQ012: rows are missing; PQ016: another transaction held the stage for three seconds; other errors as in publish.';
