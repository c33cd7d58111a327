-- Spark: runs of pipelines, and what many tasks publish in one transaction.
--
-- A run has a name and is done once: finish_run records its summary, which begin_run returns if the run is begun again.
--
-- Tasks that publish insert into the staging table of their job (stage_publish), each attempt under a number of its own. The driver
-- names the attempts that succeeded: publish_staged publishes their rows, all or none, and records the run in the same transaction.
-- If it is called again, it publishes nothing. Maintenance drops the staging table of a job that died.
--
-- Tables: pipeline_run, publish_stage, staged_message.

CREATE OR REPLACE FUNCTION messages.begin_run(run_id text, pipeline text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_length('run_id', begin_run.run_id, 1, 250, required => true),
            messages.check_length('pipeline', begin_run.pipeline, 1, 250, required => true);
    INSERT INTO messages.pipeline_run (run_id, pipeline) VALUES (begin_run.run_id, begin_run.pipeline)
    ON CONFLICT (started_by, run_id) DO NOTHING;
    RETURN messages.run_summary(begin_run.run_id, begin_run.pipeline);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', begin_run.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.begin_run IS
    'Records that a run of a pipeline starts; returns its summary if it has already finished, else NULL. Each login has names of its own. PQ004: no name, or the name of another pipeline''s run; PQ016: a transaction that begins it stays open for more than three seconds, or waits for this one.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.finish_run(run_id text, summary jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    finished messages.pipeline_run;
BEGIN
    IF finish_run.summary IS NULL THEN
        RAISE EXCEPTION 'summary is NULL' USING ERRCODE = 'PQ004', HINT = 'Give JSON; its null is ''null''.';
    END IF;
    UPDATE messages.pipeline_run r
       SET finished_at = coalesce(r.finished_at, clock_timestamp()), summary = coalesce(r.summary, finish_run.summary)
     WHERE r.started_by = session_user AND r.run_id = finish_run.run_id
    RETURNING * INTO finished;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', coalesce(quote_literal(left(finish_run.run_id, 250)), 'NULL') USING ERRCODE = 'PQ004',
            HINT = 'Finish it as the login that began it.';
    END IF;
    -- Only the transaction that publishes records what such a run published.
    IF finished.pipeline IN ('publish', 'publish stream') THEN
        RAISE EXCEPTION 'run % publishes, and is finished by messages.publish_staged()', quote_literal(finish_run.run_id)
            USING ERRCODE = 'PQ004', HINT = 'Finish runs of pipelines only.';
    END IF;
    RETURN finished.summary;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', finish_run.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.finish_run IS
    'Records that a run is done and returns its summary; of two concurrent calls both return that of the first. PQ004: this login did not begin it, no summary, or publish_staged() finishes it; PQ016: a transaction that finishes it stayed open for more than three seconds, or waits for this one.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.run_summary(run_id text, pipeline text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known messages.pipeline_run;
BEGIN
    SELECT * INTO known FROM messages.pipeline_run r WHERE r.started_by = session_user AND r.run_id = run_summary.run_id;
    IF known.pipeline <> run_summary.pipeline THEN
        RAISE EXCEPTION 'run % belongs to pipeline %, not to %', quote_literal(run_summary.run_id), known.pipeline, run_summary.pipeline
            USING ERRCODE = 'PQ004', HINT = 'Give each run of each pipeline a name of its own.';
    END IF;
    RETURN known.summary;
END $$;
COMMENT ON FUNCTION messages.run_summary IS
    'The summary of a run of a pipeline that this login began, NULL until it finishes or if it never began. PQ004: the name is that of another pipeline''s run.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.run_holder(run_id text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Each login has its own names of runs. The login is written without spaces, so that the name of one run is not the beginning of another's.
RETURN 'spark ' || run_id || ' ' || replace(session_user::text, ' ', '_') || ' ';
COMMENT ON FUNCTION messages.run_holder IS
    'How locked_by and handled_by begin for what a run of a pipeline leases: ''spark RUN LOGIN ''. Two logins may use one name of a run.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.run_archived(
    run_id text,
    OUT success      bigint,
    OUT rejected     bigint,
    OUT failed       bigint,
    OUT lock_expired bigint,
    OUT seconds      double precision,
    OUT worked       double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    began  timestamptz;
    holder text := messages.run_holder(run_archived.run_id);
BEGIN
    SELECT r.started_at INTO began FROM messages.pipeline_run r WHERE r.started_by = session_user AND r.run_id = run_archived.run_id;
    IF began IS NULL THEN
        RAISE EXCEPTION 'there is no run %', quote_literal(left(run_archived.run_id, 250)) USING ERRCODE = 'PQ004',
            HINT = 'Begin it: SELECT messages.begin_run(run_id, pipeline)';
    END IF;
    SELECT count(*) FILTER (WHERE a.result = 'success'), count(*) FILTER (WHERE a.result = 'rejected'),
           count(*) FILTER (WHERE a.result = 'failed'), count(*) FILTER (WHERE a.result = 'lock_expired'),
           extract(epoch FROM clock_timestamp() - began), coalesce(extract(epoch FROM max(a.archived_at) - min(a.leased_at)), 0)
      INTO success, rejected, failed, lock_expired, seconds, worked
      FROM messages.archive_rows a
     -- No space may follow: the name of one run may be the beginning of another's.
     WHERE a.archived_at >= began AND starts_with(a.handled_by, holder)
       AND strpos(substr(a.handled_by, length(holder) + 1), ' ') = 0;
END $$;
COMMENT ON FUNCTION messages.run_archived IS
    'How many messages a run of a pipeline has archived since it began, by result, how many seconds ago it began, and how many it worked: from its first lease to its last result. PQ004: no such run.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.run_backlog(
    holder     text,
    queue_name text,
    OUT ready   bigint,
    OUT held    bigint,
    OUT waiting bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM messages.check_queue(run_backlog.queue_name, 'observe');
    SELECT count(*) FILTER (WHERE free AND m.visible_at <= moment AND coalesce(m.expires_at > moment, true)),
           -- No space may follow: the name of one run may be the beginning of another's.
           count(*) FILTER (WHERE NOT free AND starts_with(lease.locked_by, run_backlog.holder)
                                  AND strpos(substr(lease.locked_by, length(run_backlog.holder) + 1), ' ') = 0),
           count(*)
      INTO ready, held, waiting
      FROM messages.message_rows m
     CROSS JOIN LATERAL (SELECT coalesce(m.lock_expires_at <= moment, true) AS free, m.locked_by) lease
     WHERE m.queue_name = run_backlog.queue_name COLLATE "default";
    waiting := waiting - ready - held;
END $$;
COMMENT ON FUNCTION messages.run_backlog IS
    'What is left for a run of a pipeline: ready to lease now, held by leases of this holder (what run_holder returns, or that and ''PART.''), and waiting: delayed, behind others of a group, or held by others. Counts every message of the queue, and changes none: call scan() first, so that what is due counts as ready. PQ001: unknown queue.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.stage_publish(stage_id text, queue_name text DEFAULT NULL, run_id text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    stage   text;
    grantee name;
BEGIN
    PERFORM messages.check_length('stage_id', stage_publish.stage_id, 1, 250, required => true);
    PERFORM messages.check_queue(stage_publish.queue_name, 'publish') WHERE stage_publish.queue_name IS NOT NULL;
    IF messages.begin_publish_run(stage_publish.run_id, stage_publish.queue_name) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    BEGIN
        INSERT INTO messages.publish_stage AS s (stage_id) VALUES (stage_publish.stage_id)
        ON CONFLICT (made_by, stage_id) DO UPDATE SET expires_at = excluded.expires_at
        RETURNING format('messages.publish_stage_%s', s.number) INTO stage;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('stage %L', stage_publish.stage_id), SQLSTATE);
    END;
    IF to_regclass(stage) IS NULL THEN
        -- No autovacuum: its lock would be in the way of the DROP.
        EXECUTE format('CREATE UNLOGGED TABLE %s (LIKE messages.staged_message INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)
                          WITH (autovacuum_enabled = off)', stage);
        PERFORM messages.keep_private(stage::regclass);
        -- A grant to the login itself would keep it from being dropped.
        SELECT coalesce(min(r.rolname), session_user) INTO grantee FROM pg_roles r
         WHERE r.rolname IN ('messages_admin', 'messages_publisher') AND pg_has_role(session_user, r.oid, 'MEMBER');
        EXECUTE format('GRANT INSERT ON %s TO %I', stage, grantee);
        EXECUTE format('CREATE TRIGGER check_stage_login BEFORE INSERT ON %s FOR EACH STATEMENT EXECUTE FUNCTION messages.check_stage_login(%L)',
                       stage, session_user);
    END IF;
    RETURN stage;
END $$;
COMMENT ON FUNCTION messages.stage_publish IS
    'Creates or finds the staging table of a job and returns its name, or NULL if the run was published before. This login may INSERT rows under an attempt number of its own; publish_staged() publishes them. Maintenance drops the table a day after the last call. Each login has names of its own. PQ001: unknown queue; PQ004: bad name, or a run that has published to another queue; PQ016: a transaction that made the stage stays open for more than three seconds, or waits for this one.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.check_stage_login() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF session_user <> TG_ARGV[0] COLLATE "C" THEN
        RAISE EXCEPTION 'stage % belongs to another login', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege',
            HINT = 'Stage with stage_publish() of this login.';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.check_stage_login IS
    'The trigger of a staging table: raises 42501 for every login but that of its job.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.publish_staged(
    stage_id     text,
    run_id       text,
    winners      jsonb,
    queue_name   text     DEFAULT NULL,
    dedup_window interval DEFAULT NULL,
    batch        bigint   DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done jsonb;
BEGIN
    PERFORM messages.check_duration('dedup_window', publish_staged.dedup_window, '1 second', '366 days');
    PERFORM messages.check_length('run_id', publish_staged.run_id, 1, 250, required => true), messages.check_winners(publish_staged.winners);
    done := CASE WHEN publish_staged.batch IS NULL THEN messages.begin_publish_run(publish_staged.run_id, publish_staged.queue_name)
                 ELSE messages.lock_publish_run(publish_staged.run_id, publish_staged.batch) END || '{"repeated": true}';
    IF done IS NOT NULL THEN
        -- The stage of a stream may hold the next batch already: this call may come from a driver that has been replaced.
        PERFORM messages.drop_or_empty_stage(s.number) FROM messages.publish_stage s
         WHERE publish_staged.batch IS NULL AND s.made_by = session_user AND s.stage_id = publish_staged.stage_id;
        RETURN done;
    END IF;
    done := messages.insert_staged(publish_staged.stage_id, publish_staged.winners, publish_staged.queue_name, publish_staged.dedup_window)
            || jsonb_strip_nulls(jsonb_build_object('batch', publish_staged.batch));
    -- A stream has one row, that of its last batch.
    UPDATE messages.pipeline_run r
       SET finished_at = clock_timestamp(), summary = done,
           started_at = CASE WHEN publish_staged.batch IS NULL THEN r.started_at ELSE clock_timestamp() END
     WHERE r.started_by = session_user AND r.run_id = publish_staged.run_id;
    PERFORM messages.drop_or_empty_stage(s.number, publish_staged.batch IS NOT NULL) FROM messages.publish_stage s
     WHERE s.made_by = session_user AND s.stage_id = publish_staged.stage_id;
    RETURN done;
END $$;
COMMENT ON FUNCTION messages.publish_staged IS
    'Publishes the rows of the attempts in winners ([{partition, attempt, rows}, ...]) in their order, records the run, and drops the stage (empties it for a stream), all or none. Called again for the same run or batch, it publishes nothing and returns repeated. PQ004: the run has published to another queue; PQ012: rows are missing; other errors as in publish.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.check_winners(winners jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF jsonb_typeof(winners) IS DISTINCT FROM 'array'
       OR EXISTS (
           SELECT FROM jsonb_array_elements(winners) AS w
            WHERE concat(w -> 'partition', w -> 'attempt', w -> 'rows') LIKE '%.%' OR NOT jsonb_path_exists(w, 'strict $ ? (
               @.partition >= 0 && @.partition <= 2147483647 && @.partition.floor() == @.partition
               && @.attempt >= -9223372036854775808 && @.attempt <= 9223372036854775807 && @.attempt.floor() == @.attempt
               && @.rows >= 0 && @.rows <= 10000000000 && @.rows.floor() == @.rows)'))
       OR EXISTS (SELECT FROM jsonb_array_elements(winners) AS w GROUP BY w -> 'attempt' HAVING count(*) > 1) THEN
        RAISE EXCEPTION 'winners are not what was staged'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array of {partition, attempt, rows}, whole numbers without a decimal point, with each attempt once.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_winners IS 'Raises PQ004 for what cannot be the winners of publish_staged.'
    ' [internal]';

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
    insert    text;
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
        -- Every other column of the message gets the value of the staged row.
        SELECT format($insert$
                   INSERT INTO messages.message (id, queue_name, priority, created_at, visible_at, %1$s)
                   SELECT %%s, r.target, coalesce(r.priority, 4), $3, greatest(r.visible_at, $3) + r.place * interval '1 us', %1$s FROM (%%s) r
                   $insert$, string_agg(quote_ident(c.attname), ', '))
          INTO insert FROM pg_attribute c
         WHERE c.attrelid = stage::regclass AND c.attnum > 0 AND NOT c.attisdropped
           AND c.attname <> ALL ('{attempt,ordinal,queue_name,dedup_key,priority,visible_at}');
        ranked := format('SELECT s.*, coalesce(nullif(s.queue_name, ''''), $2) AS target, w.before + s.ordinal AS place
                            FROM %s s JOIN (SELECT r.attempt, sum(r.rows) OVER (ORDER BY r.partition) - r.rows AS before
                                              FROM jsonb_to_recordset($1) AS r (partition integer, attempt bigint, rows bigint)) w
                                      USING (attempt)', stage);
        IF in_order THEN
            -- Take the keys in the same order as publish_deduplicated does, so that two publishers cannot deadlock.
            EXECUTE format($ordered$
                WITH numbered AS MATERIALIZED (
                    SELECT o.*, nextval('messages.message_id_seq') AS id FROM (%s ORDER BY place) o),
                remembered AS (
                    INSERT INTO messages.dedup AS d (queue_name, dedup_key, id, expires_at)
                    SELECT DISTINCT ON (n.target COLLATE "C", n.dedup_key COLLATE "C")
                           n.target, n.dedup_key, n.id, $3 + coalesce($4, q.dedup_window, '0')
                      -- The trigger refuses a message of a queue that was dropped since the check above.
                      FROM numbered n LEFT JOIN messages.queue q ON q.queue_name = n.target
                     WHERE n.dedup_key IS NOT NULL
                     ORDER BY n.target COLLATE "C", n.dedup_key COLLATE "C", n.place
                    ON CONFLICT (queue_name, dedup_key) DO UPDATE SET id = excluded.id, expires_at = excluded.expires_at
                     WHERE d.expires_at <= $3
                    RETURNING d.id),
                published AS (%s RETURNING 1)
                SELECT (SELECT count(*) FROM numbered), (SELECT count(*) FROM published)
                $ordered$, ranked, format(insert, 'r.id', 'SELECT n.* FROM numbered n
                                                            WHERE n.dedup_key IS NULL OR n.id IN (SELECT d.id FROM remembered d) ORDER BY n.id'))
                INTO taken, published USING insert_staged.winners, insert_staged.queue_name, moment, insert_staged.dedup_window;
        ELSE
            -- The rows are not sorted, because leases follow visible_at anyway: sorting a million bodies costs as much as inserting them.
            EXECUTE format(insert, 'nextval(''messages.message_id_seq'')', ranked) USING insert_staged.winners, insert_staged.queue_name, moment;
            GET DIAGNOSTICS published = ROW_COUNT;
            taken := published;
        END IF;
        -- Rows are only ever added, so an equal number means the same rows, whose queues were checked above.
        IF taken <> staged THEN
            RAISE EXCEPTION 'rows that the tasks staged: %; rows that are there now: %; nothing was published', staged, taken
                USING ERRCODE = 'PQ012', HINT = 'Something writes under the number of an attempt that has ended. Run the job again.';
        END IF;
    END IF;
    RETURN jsonb_build_object('rows', staged, 'published', published, 'duplicates', staged - published);
END $$;
COMMENT ON FUNCTION messages.insert_staged IS
    'Publishes the rows of the attempts in winners, in their order; returns how many rows there were, how many of them were published and how many were duplicates. PQ012: rows are missing; PQ016: another transaction held the stage for three seconds; other errors as in publish.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.lock_stage(stage_id text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT to_regclass(format('messages.publish_stage_%s', s.number))::text FROM messages.publish_stage s
             WHERE s.made_by = session_user AND s.stage_id = lock_stage.stage_id FOR UPDATE);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('stage %L', lock_stage.stage_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lock_stage IS
    'Locks the stage of a job until the commit, and returns the name of its table; NULL if there is none. PQ016: another transaction held it for three seconds, or waits for this one.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.drop_or_empty_stage(number bigint, keep_table boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stage regclass := to_regclass(format('messages.publish_stage_%s', drop_or_empty_stage.number));
BEGIN
    IF stage IS NOT NULL THEN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', stage);
        EXECUTE format('%s TABLE %s', CASE WHEN keep_table THEN 'TRUNCATE' ELSE 'DROP' END, stage);
    END IF;
    DELETE FROM messages.publish_stage s WHERE s.number = drop_or_empty_stage.number AND NOT keep_table;
    RETURN true;
EXCEPTION
    -- A task that lost to another attempt, or whose driver died, may still write: do not wait for it.
    WHEN lock_not_available THEN
        UPDATE messages.publish_stage s SET expires_at = clock_timestamp() WHERE s.number = drop_or_empty_stage.number AND NOT keep_table;
        RETURN false;
END $$;
COMMENT ON FUNCTION messages.drop_or_empty_stage IS
    'Drops a staging table, or leaves it to the next maintenance run if a task still writes there; with keep_table it only empties it, for the next batch of a stream.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.drop_stage(stage_id text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(bool_and(messages.drop_or_empty_stage(s.number)), false) FROM (
        SELECT p.number FROM messages.publish_stage p
         WHERE p.made_by = session_user AND p.stage_id = drop_stage.stage_id FOR UPDATE SKIP LOCKED) s
$$;
COMMENT ON FUNCTION messages.drop_stage IS
    'Drops the staging table of a job that will not publish; true if it is gone. While a task still writes there it is left to maintenance.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.begin_publish_run(run_id text, queue_name text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done jsonb := messages.lock_publish_run(begin_publish_run.run_id);
    was  text;
BEGIN
    IF begin_publish_run.run_id IS NULL THEN
        RETURN NULL;
    END IF;
    -- A run that has published nothing may still publish to another queue.
    UPDATE messages.pipeline_run r SET queue_name = begin_publish_run.queue_name
     WHERE r.started_by = session_user AND r.run_id = begin_publish_run.run_id AND r.finished_at IS NULL;
    SELECT r.queue_name INTO was FROM messages.pipeline_run r
     WHERE r.started_by = session_user AND r.run_id = begin_publish_run.run_id;
    IF was IS DISTINCT FROM begin_publish_run.queue_name THEN
        RAISE EXCEPTION 'run % has published to %, not to %', quote_literal(begin_publish_run.run_id),
                        coalesce('queue ' || quote_literal(was), 'the queues that its rows named'),
                        coalesce('queue ' || quote_literal(begin_publish_run.queue_name), 'the queues that its rows name')
            USING ERRCODE = 'PQ004', HINT = 'Give each run a name of its own.';
    END IF;
    RETURN done;
END $$;
COMMENT ON FUNCTION messages.begin_publish_run IS
    'Locks a run that publishes to a queue, or to those that its rows name, as lock_publish_run() does; returns what it published before, else NULL. PQ004: it has published to another queue, or the name is that of another pipeline''s run.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.lock_publish_run(run_id text, batch bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    run messages.pipeline_run;
BEGIN
    IF lock_publish_run.run_id IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM messages.begin_run(lock_publish_run.run_id, CASE WHEN batch IS NULL THEN 'publish' ELSE 'publish stream' END);
    SELECT * INTO run FROM messages.pipeline_run r
     WHERE r.started_by = session_user AND r.run_id = lock_publish_run.run_id FOR UPDATE;
    IF batch < (run.summary ->> 'batch')::bigint THEN
        RAISE EXCEPTION 'stream % has published batch %, and is now given batch % again',
            quote_literal(lock_publish_run.run_id), run.summary ->> 'batch', batch
            USING ERRCODE = 'PQ004', HINT = 'Its checkpoint is older than what was published. Restore the newest one, or begin a new one.';
    ELSIF batch IS NULL OR batch = (run.summary ->> 'batch')::bigint THEN
        RETURN run.summary;
    END IF;
    RETURN NULL;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('run %L', lock_publish_run.run_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lock_publish_run IS
    'Locks a run, or a stream whose last batch is remembered, so that of two concurrent calls the second waits. Returns what it published before, else NULL. PQ004: the name of another pipeline''s run, or a batch before the last; PQ016: a transaction that publishes it stays open for more than three seconds, or waits for this one.'
    ' [internal]';
