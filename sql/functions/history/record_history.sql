CREATE OR REPLACE FUNCTION messages.record_history(xids_at_once bigint DEFAULT 200000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET timezone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    moment    timestamptz := clock_timestamp();
    minute    timestamptz := date_trunc('minute', moment, 'UTC');
    last      messages.history_progress;
    recorded  record;
    newest    bigint;
    newest_id bigint;
    own_xid   bigint := pg_current_xact_id()::text::bigint;
    up_to     bigint;
    late_from timestamptz;
    complete  boolean;
    rows      bigint := 0;
BEGIN
    SELECT * INTO last FROM messages.history_progress FOR UPDATE;
    newest := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    IF last.next_xid > greatest(newest, own_xid + 1) THEN
        PERFORM messages.begin_history();                       -- a copy, on a server that has seen less
        RETURN 0;
    END IF;
    -- What was archived is counted by its transaction. What was published is counted by its id where it is first seen, in the queue or
    -- in the archive; if its transaction was open then, by its xmin; and if somebody has changed the row since, by the depth.
    LOOP
        -- After a pause there is much to count. That is done in parts, for at most half a second.
        newest := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
        complete := newest - last.next_xid <= record_history.xids_at_once;
        up_to := CASE WHEN NOT complete THEN last.next_xid + record_history.xids_at_once END;
        newest_id := coalesce(pg_sequence_last_value('messages.message_id_seq'), 0);
        WITH snapshot AS MATERIALIZED (SELECT pg_current_snapshot() AS now),
        counted AS MATERIALIZED (SELECT * FROM messages.history_counts(last, up_to, moment)),
        arrived AS MATERIALIZED (
            SELECT c.queue_name, c.arrived_at AS bucket_at, sum(c.messages) AS messages FROM counted c
             WHERE c.arrived_at IS NOT NULL GROUP BY 1, 2
            UNION ALL
            SELECT m.queue_name, date_trunc('minute', CASE WHEN m.created_at BETWEEN last.recorded_at - interval '1 day' AND moment
                                                           THEN m.created_at ELSE moment END, 'UTC'), count(*)
              FROM messages.message_rows m
             WHERE complete AND m.id > last.last_id AND m.id <= newest_id GROUP BY 1, 2
            UNION ALL
            -- Messages of a transaction that was open then and has ended: its xmin shows it, unless somebody has changed the row since.
            SELECT m.queue_name, minute, count(*)
              FROM messages.message_rows m
             WHERE complete AND m.id > greatest(last.settled_id, last.last_id - 500000) AND m.id <= last.last_id
               AND m.leased_at IS NULL AND m.group_key IS NULL
               AND ((m.xmin::text::bigint - last.next_xid) & 4294967295 < 2147483648
                    OR m.xmin::text::bigint = ANY (ARRAY(SELECT x & 4294967295 FROM unnest(last.open_xids) AS x)))
             GROUP BY 1),
        level AS MATERIALIZED (
            SELECT s.*, moment - s.oldest_age AS oldest_at FROM messages.status() s WHERE complete),
        -- A message that was changed before it was seen is missing so far. The change of the depth gives the number of these.
        missed AS (
            SELECT b.queue_name, sum(b.messages) AS messages FROM (
                SELECT l.queue_name, l.depth AS messages, l.depth <= l.counted_up_to AS exact FROM level l
                UNION ALL SELECT h.queue_name, -h.depth, h.exact FROM messages.history_level h WHERE complete
                UNION ALL SELECT c.queue_name, c.messages, true FROM counted c
                UNION ALL SELECT a.queue_name, -a.messages, true FROM arrived a) b
             WHERE complete AND last.caught_up
             GROUP BY b.queue_name HAVING sum(b.messages) > 0 AND bool_and(b.exact)),
        changed AS MATERIALIZED (
            SELECT l.* FROM level l LEFT JOIN messages.history_level h ON h.queue_name = l.queue_name
             WHERE (l.depth, l.ready, l.leased, l.delayed, l.dead)
                   IS DISTINCT FROM (coalesce(h.depth, 0), coalesce(h.ready, 0), coalesce(h.leased, 0), coalesce(h.delayed, 0), coalesce(h.dead, 0))
                OR (l.oldest_at IS NULL) <> (h.oldest_at IS NULL) OR abs(date_part('epoch', l.oldest_at - h.oldest_at)) > 2
                OR (l.depth <= l.counted_up_to) <> coalesce(h.exact, true)),
        published AS (
            SELECT p.queue_name, p.bucket_at, sum(p.messages) AS arrivals FROM (
                SELECT a.* FROM arrived a
                UNION ALL SELECT m.queue_name, minute, m.messages FROM missed m
                UNION ALL SELECT c.queue_name, minute, 0 FROM changed c) p
             GROUP BY 1, 2),
        finished AS (
            SELECT c.queue_name, c.bucket_at,
                   sum(c.messages) FILTER (WHERE c.result = 'success') AS success, sum(c.messages) FILTER (WHERE c.result = 'failed') AS failed,
                   sum(c.messages) FILTER (WHERE c.result = 'rejected') AS rejected,
                   sum(c.messages) FILTER (WHERE c.result = 'lock_expired') AS lock_expired,
                   sum(c.messages) FILTER (WHERE c.result = 'expired') AS expired,
                   sum(c.messages) FILTER (WHERE c.result = 'cancelled') AS cancelled, sum(c.attempts) AS attempts,
                   max(c.wait_max) AS wait_max, max(c.run_max) AS run_max,
                   messages.sum_durations(array_agg(ARRAY[c.wait, c.messages]) FILTER (WHERE c.wait IS NOT NULL)) AS waits,
                   messages.sum_durations(array_agg(ARRAY[c.run, c.messages]) FILTER (WHERE c.run IS NOT NULL)) AS runs
              FROM counted c GROUP BY 1, 2),
        total AS (
            SELECT queue_name, bucket_at, coalesce(p.arrivals, 0) AS arrivals, coalesce(f.success, 0) AS success, coalesce(f.failed, 0) AS failed,
                   coalesce(f.rejected, 0) AS rejected, coalesce(f.lock_expired, 0) AS lock_expired, coalesce(f.expired, 0) AS expired,
                   coalesce(f.cancelled, 0) AS cancelled, coalesce(f.attempts, 0) AS attempts, f.wait_max, f.run_max, f.waits, f.runs
              FROM published p FULL JOIN finished f USING (queue_name, bucket_at)),
        stored AS (
            INSERT INTO messages.history AS t (queue_name, grain, bucket_at, depth, depth_max, ready, leased, delayed, dead, oldest_at,
                arrivals, success, failed, rejected, lock_expired, expired, cancelled, attempts, wait_max, run_max, waits, runs)
            SELECT n.queue_name, 'minute', n.bucket_at, l.depth, l.depth, l.ready, l.leased, l.delayed, l.dead, l.oldest_at,
                   n.arrivals, n.success, n.failed, n.rejected, n.lock_expired, n.expired, n.cancelled, n.attempts, n.wait_max, n.run_max,
                   n.waits, n.runs
              FROM total n
              LEFT JOIN level l ON l.queue_name = n.queue_name AND n.bucket_at = minute
            ON CONFLICT (queue_name, grain, bucket_at) DO UPDATE SET
                depth = coalesce(excluded.depth, t.depth), depth_max = greatest(excluded.depth_max, t.depth_max),
                ready = coalesce(excluded.ready, t.ready), leased = coalesce(excluded.leased, t.leased),
                delayed = coalesce(excluded.delayed, t.delayed), dead = coalesce(excluded.dead, t.dead),
                oldest_at = CASE WHEN excluded.depth IS NULL THEN t.oldest_at ELSE excluded.oldest_at END,
                arrivals = t.arrivals + excluded.arrivals, success = t.success + excluded.success, failed = t.failed + excluded.failed,
                rejected = t.rejected + excluded.rejected, lock_expired = t.lock_expired + excluded.lock_expired,
                expired = t.expired + excluded.expired, cancelled = t.cancelled + excluded.cancelled, attempts = t.attempts + excluded.attempts,
                wait_max = greatest(t.wait_max, excluded.wait_max), run_max = greatest(t.run_max, excluded.run_max),
                waits = messages.sum_durations(t.waits || excluded.waits), runs = messages.sum_durations(t.runs || excluded.runs)
            RETURNING t.bucket_at),
        totals AS (
            INSERT INTO messages.history_total AS t (queue_name, arrivals, success, failed, rejected, lock_expired, expired, cancelled, attempts)
            SELECT n.queue_name, sum(n.arrivals), sum(n.success), sum(n.failed), sum(n.rejected), sum(n.lock_expired), sum(n.expired),
                   sum(n.cancelled), sum(n.attempts)
              FROM total n WHERE EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = n.queue_name)
             GROUP BY n.queue_name HAVING sum(n.arrivals) > 0 OR sum(n.attempts) > 0 OR sum(n.expired) > 0 OR sum(n.cancelled) > 0
            ON CONFLICT (queue_name) DO UPDATE SET arrivals = t.arrivals + excluded.arrivals, success = t.success + excluded.success,
                failed = t.failed + excluded.failed, rejected = t.rejected + excluded.rejected,
                lock_expired = t.lock_expired + excluded.lock_expired, expired = t.expired + excluded.expired,
                cancelled = t.cancelled + excluded.cancelled, attempts = t.attempts + excluded.attempts),
        died AS (
            SELECT c.queue_name, c.bucket_at, c.result,
                   CASE WHEN row_number() OVER (PARTITION BY c.queue_name, c.bucket_at ORDER BY sum(c.messages) DESC, c.fingerprint) <= 20
                        THEN c.fingerprint ELSE 'other' END AS fingerprint, sum(c.messages) AS messages
              FROM counted c WHERE c.fingerprint IS NOT NULL GROUP BY c.queue_name, c.bucket_at, c.result, c.fingerprint),
        causes AS (
            INSERT INTO messages.history_cause AS t (queue_name, grain, bucket_at, result, fingerprint, messages)
            SELECT d.queue_name, 'minute', d.bucket_at, d.result, d.fingerprint, sum(d.messages) FROM died d GROUP BY 1, 3, 4, 5
            ON CONFLICT (queue_name, grain, bucket_at, result, fingerprint) DO UPDATE SET messages = t.messages + excluded.messages),
        levels AS (
            INSERT INTO messages.history_level AS t (queue_name, depth, ready, leased, delayed, dead, oldest_at, exact)
            SELECT c.queue_name, c.depth, c.ready, c.leased, c.delayed, c.dead, c.oldest_at, c.depth <= c.counted_up_to FROM changed c
            ON CONFLICT (queue_name) DO UPDATE SET depth = excluded.depth, ready = excluded.ready, leased = excluded.leased,
                delayed = excluded.delayed, dead = excluded.dead, oldest_at = excluded.oldest_at, exact = excluded.exact),
        gone AS (
            DELETE FROM messages.history_level h
             WHERE complete AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = h.queue_name)),
        ended AS (
            DELETE FROM messages.history_total h
             WHERE complete AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = h.queue_name))
        SELECT pg_snapshot_xmin(s.now)::text::bigint AS oldest_xid, pg_snapshot_xmax(s.now)::text::bigint AS next_xid,
               ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(s.now) AS x) AS open_xids,
               (SELECT count(*) FROM stored) AS rows, (SELECT min(t.bucket_at) FROM stored t) AS from_at
          INTO recorded FROM snapshot s;
        rows := rows + recorded.rows;
        late_from := least(late_from, recorded.from_at);
        -- What this transaction itself archived is counted, whatever the snapshot says of it.
        IF complete AND own_xid >= recorded.next_xid THEN
            recorded.open_xids := recorded.open_xids || ARRAY(SELECT generate_series(recorded.next_xid, own_xid - 1));
            recorded.next_xid := own_xid + 1;
        END IF;
        last.next_xid := CASE WHEN complete THEN recorded.next_xid ELSE up_to END;
        last.open_xids := ARRAY(SELECT x FROM unnest(recorded.open_xids) AS x WHERE x < last.next_xid ORDER BY x);
        last.oldest_xid := least(recorded.oldest_xid, last.next_xid);
        last.caught_up := complete;
        IF complete THEN
            last.settled_id := CASE WHEN last.settling_xid <= last.oldest_xid THEN last.settling_id ELSE last.settled_id END;
            IF last.settling_xid <= last.oldest_xid THEN
                last.settling_id := newest_id;
                last.settling_xid := last.next_xid;
            END IF;
            last.last_id := newest_id;
        END IF;
        EXIT WHEN complete OR clock_timestamp() > moment + interval '0.5 s';
    END LOOP;
    UPDATE messages.history_progress p
       SET recorded_at = moment, oldest_xid = last.oldest_xid, next_xid = last.next_xid, open_xids = last.open_xids, last_id = last.last_id,
           settled_id = last.settled_id, settling_id = last.settling_id, settling_xid = last.settling_xid, caught_up = last.caught_up;
    IF complete THEN
        INSERT INTO messages.history_minute (recorded_at) VALUES (minute) ON CONFLICT DO NOTHING;
    END IF;
    PERFORM messages.roll_up_history(late_from);
    RETURN rows;
END $$;
COMMENT ON FUNCTION messages.record_history(bigint) IS
    'Records each queue that changed or had traffic since the last time, adds completed hours and days up, and returns how many rows it wrote. What a transaction archived is counted once, whenever it commits; what was published is counted when it is first seen. Stops after about half a second and continues the next time.';
