-- Additive: workers of version 1 run on beside this schema. All locks at once, or none.
DO $$
BEGIN
    FOR attempt IN 1..200 LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE messages.message_archive;
            SET LOCAL lock_timeout = '30s';
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 200 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(random() / 10);
        END;
    END LOOP;
END $$;

-- The archive as a log: ids and times are drawn before the commit, so only the transaction tells what a reader has seen.
-- docs/decisions/0008-the-archive-as-a-log.md. The default in a step of its own, so that no row is written anew.
ALTER TABLE messages.message_archive ADD COLUMN xid bigint;
ALTER TABLE messages.message_archive ALTER COLUMN xid SET DEFAULT pg_current_xact_id()::text::bigint;
CREATE INDEX message_archive_xid_idx ON messages.message_archive USING brin (xid) WITH (autosummarize = on);
COMMENT ON COLUMN messages.message_archive.xid IS 'The transaction that archived it: the place in the log. NULL: before schema version 5, which is the beginning of the log.';

CREATE TABLE messages.pipeline_run (
    run_id      text        PRIMARY KEY CHECK (run_id <> '' AND length(run_id) <= 250),
    pipeline    text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_by  text        NOT NULL DEFAULT session_user,
    finished_at timestamptz,
    summary     jsonb,
    CONSTRAINT pipeline_run_finished_with_summary CHECK ((finished_at IS NULL) = (summary IS NULL))
);
CREATE INDEX pipeline_run_started_at_idx ON messages.pipeline_run (started_at);
COMMENT ON TABLE messages.pipeline_run IS 'Runs of the pipelines: a finished one is not done again. Forgotten after 90 days.';
COMMENT ON COLUMN messages.pipeline_run.run_id IS 'The name of the run; in Airflow made of DAG, task and run.';
COMMENT ON COLUMN messages.pipeline_run.pipeline IS 'What it does: drain, export, …';
COMMENT ON COLUMN messages.pipeline_run.started_at IS 'When it started last.';
COMMENT ON COLUMN messages.pipeline_run.started_by IS 'The role that started it.';
COMMENT ON COLUMN messages.pipeline_run.finished_at IS 'When it was done; NULL until then.';
COMMENT ON COLUMN messages.pipeline_run.summary IS 'What it says it did, as the pipeline returned it.';

CREATE TABLE messages.traffic (
    grain        text        NOT NULL CHECK (grain IN ('minute', 'hour', 'day')),
    bucket_at    timestamptz NOT NULL,
    queue_name   text        NOT NULL,
    arrivals     bigint      NOT NULL DEFAULT 0 CHECK (arrivals >= 0),
    success      bigint      NOT NULL DEFAULT 0 CHECK (success >= 0),
    failed       bigint      NOT NULL DEFAULT 0 CHECK (failed >= 0),
    rejected     bigint      NOT NULL DEFAULT 0 CHECK (rejected >= 0),
    lock_expired bigint      NOT NULL DEFAULT 0 CHECK (lock_expired >= 0),
    expired      bigint      NOT NULL DEFAULT 0 CHECK (expired >= 0),
    completions  bigint      NOT NULL GENERATED ALWAYS AS (success + failed + rejected + lock_expired + expired) STORED,
    attempts     bigint      NOT NULL DEFAULT 0,
    attempts_max integer     NOT NULL DEFAULT 0,
    wait_p50     interval,
    wait_p95     interval,
    wait_p99     interval,
    wait_max     interval,
    run_p50      interval,
    run_p95      interval,
    run_p99      interval,
    run_max      interval,
    dead_causes  jsonb       NOT NULL DEFAULT '[]',
    run_id       text        NOT NULL,
    recorded_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (grain, bucket_at, queue_name)
);
COMMENT ON TABLE messages.traffic IS 'What went through each queue in each minute, hour and day. Minutes are kept 14 days, hours 400 days, days for ever.';
COMMENT ON COLUMN messages.traffic.grain IS 'minute, hour or day, in UTC.';
COMMENT ON COLUMN messages.traffic.bucket_at IS 'Where the bucket begins; it ends before the next one.';
COMMENT ON COLUMN messages.traffic.queue_name IS 'The queue; it may have been dropped since.';
COMMENT ON COLUMN messages.traffic.arrivals IS 'Messages that were published, by created_at.';
COMMENT ON COLUMN messages.traffic.success IS 'Messages that were archived as success, by archived_at, as all that follows.';
COMMENT ON COLUMN messages.traffic.failed IS 'Archived as failed.';
COMMENT ON COLUMN messages.traffic.rejected IS 'Archived as rejected.';
COMMENT ON COLUMN messages.traffic.lock_expired IS 'Archived as lock_expired.';
COMMENT ON COLUMN messages.traffic.expired IS 'Archived as expired.';
COMMENT ON COLUMN messages.traffic.completions IS 'All that were archived.';
COMMENT ON COLUMN messages.traffic.attempts IS 'Deliveries that the archived messages took, together.';
COMMENT ON COLUMN messages.traffic.attempts_max IS 'Most deliveries that one of them took.';
COMMENT ON COLUMN messages.traffic.wait_p50 IS 'Half of the messages waited at most so long from publish to the beginning of their last lease: delays and retries are in it. NULL: none was leased.';
COMMENT ON COLUMN messages.traffic.wait_p95 IS '95 of 100 waited at most so long. Exact, by nearest rank.';
COMMENT ON COLUMN messages.traffic.wait_p99 IS '99 of 100 waited at most so long.';
COMMENT ON COLUMN messages.traffic.wait_max IS 'The longest wait.';
COMMENT ON COLUMN messages.traffic.run_p50 IS 'Half of the messages that a handler finished took at most so long from lease to archive. NULL: there was none.';
COMMENT ON COLUMN messages.traffic.run_p95 IS '95 of 100 took at most so long.';
COMMENT ON COLUMN messages.traffic.run_p99 IS '99 of 100 took at most so long.';
COMMENT ON COLUMN messages.traffic.run_max IS 'The longest run.';
COMMENT ON COLUMN messages.traffic.dead_causes IS 'The ten most frequent causes of death: [{"result", "fingerprint", "messages"}].';
COMMENT ON COLUMN messages.traffic.run_id IS 'The run of the pipeline that counted it last.';
COMMENT ON COLUMN messages.traffic.recorded_at IS 'When that was.';
