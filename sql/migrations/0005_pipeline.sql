-- Additive: workers of version 1 run on beside this schema. All locks at once, or none.
DO $$
BEGIN
    FOR attempt IN 1..200 LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE messages.message_archive, messages.archive_policy;
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
ALTER TABLE messages.archive_policy
    ADD COLUMN gone_before_xid bigint NOT NULL DEFAULT 0,
    ADD COLUMN gone_before_id  bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN messages.archive_policy.gone_before_xid IS 'The place in the log behind the last message that was removed: a reader that had passed it lost nothing. 0: in the beginning of the log.';
COMMENT ON COLUMN messages.archive_policy.gone_before_id IS 'In the beginning of the log: the id there. 0 and 0: none was removed.';

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
COMMENT ON COLUMN messages.pipeline_run.started_at IS 'When it started first: a run that died is the same run when it is done again.';
COMMENT ON COLUMN messages.pipeline_run.started_by IS 'The role that started it.';
COMMENT ON COLUMN messages.pipeline_run.finished_at IS 'When it was done; NULL until then.';
COMMENT ON COLUMN messages.pipeline_run.summary IS 'What it says it did, as the pipeline returned it.';

CREATE TABLE messages.publish_stage (
    number     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stage_id   text        NOT NULL CHECK (stage_id <> '' AND length(stage_id) <= 250),
    made_by    text        NOT NULL DEFAULT session_user,
    expires_at timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 day',
    UNIQUE (made_by, stage_id)
);
CREATE INDEX publish_stage_expires_at_idx ON messages.publish_stage (expires_at);
COMMENT ON TABLE messages.publish_stage IS 'The staging tables publish_stage_<number>: rows of jobs that are not published yet.';
COMMENT ON COLUMN messages.publish_stage.number IS 'Names the table.';
COMMENT ON COLUMN messages.publish_stage.stage_id IS 'What its job calls it.';
COMMENT ON COLUMN messages.publish_stage.made_by IS 'The login of the job, which alone may stage and publish here.';
COMMENT ON COLUMN messages.publish_stage.expires_at IS 'The upkeep drops it then: a day after the last task began to stage.';
CREATE TABLE messages.claim (
    claim      text        PRIMARY KEY,
    queue_name text        NOT NULL,
    lock_token uuid,
    ids        bigint[]    NOT NULL DEFAULT '{}',
    expires_at timestamptz NOT NULL
);
CREATE INDEX claim_expires_at_idx ON messages.claim (expires_at);
-- Of what a stream took in a day, few claims still hold messages.
CREATE INDEX claim_held_idx ON messages.claim (split_part(claim, '/', 1), queue_name) WHERE lock_token IS NOT NULL;
COMMENT ON TABLE messages.claim IS 'Leases with a name: under the same name again there are the same messages, never others. Forgotten a day after they end.';
COMMENT ON COLUMN messages.claim.claim IS 'The name; of a lease stream STREAM/BATCH/PARTITION.';
COMMENT ON COLUMN messages.claim.queue_name IS 'The queue that it leased from.';
COMMENT ON COLUMN messages.claim.lock_token IS 'The token of the lease; NULL if there was nothing to lease, or when its batch is done.';
COMMENT ON COLUMN messages.claim.ids IS 'The messages that it leased.';
COMMENT ON COLUMN messages.claim.expires_at IS 'When its lease ends.';
-- Who decided about dead messages can be counted: a pipeline that was killed knows what it did. Few rows have a remedy.
CREATE INDEX message_archive_remedied_by_idx ON messages.message_archive (remedied_by, remedied_at) WHERE remedied_by IS NOT NULL;

CREATE TABLE messages.triage_run (
    run_id      text        PRIMARY KEY CHECK (run_id <> '' AND length(run_id) <= 250),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE messages.triage_run IS 'The triages whose causes are kept: the last 30.';
COMMENT ON COLUMN messages.triage_run.run_id IS 'The run of the pipeline.';
COMMENT ON COLUMN messages.triage_run.recorded_at IS 'When its causes were recorded.';

CREATE TABLE messages.dead_cause (
    run_id            text        NOT NULL REFERENCES messages.triage_run ON DELETE CASCADE,
    recorded_at       timestamptz NOT NULL,
    cause             text        NOT NULL,
    queue_name        text        NOT NULL,
    result            text        NOT NULL,
    error             text,
    pattern           text        NOT NULL,
    verdict           text        NOT NULL CHECK (verdict IN ('new', 'growing', 'steady', 'fading')),
    dead              bigint      NOT NULL CHECK (dead > 0),
    undecided         bigint      NOT NULL CHECK (undecided >= 0),
    requeued          bigint      NOT NULL CHECK (requeued >= 0),
    dismissed         bigint      NOT NULL CHECK (dismissed >= 0),
    died_again        bigint      NOT NULL CHECK (died_again BETWEEN 0 AND requeued),
    first_at          timestamptz NOT NULL,
    last_at           timestamptz NOT NULL CHECK (last_at >= first_at),
    series_from       timestamptz NOT NULL,
    series_step       interval    NOT NULL CHECK (series_step > '0'),
    series            bigint[]    NOT NULL,
    fingerprints      text[]      NOT NULL CHECK (cardinality(fingerprints) > 0),
    sample_ids        bigint[]    NOT NULL,
    sample_references text[]      NOT NULL,
    PRIMARY KEY (run_id, cause),
    CONSTRAINT dead_cause_adds_up CHECK (dead = undecided + requeued + dismissed),
    CONSTRAINT dead_cause_references_its_samples CHECK (cardinality(sample_ids) = cardinality(sample_references))
);
COMMENT ON TABLE messages.dead_cause IS 'Why messages died in the window of a triage: fingerprints with near-identical messages are one cause.';
COMMENT ON COLUMN messages.dead_cause.run_id IS 'The triage.';
COMMENT ON COLUMN messages.dead_cause.recorded_at IS 'When it was recorded: the numbers are of then.';
COMMENT ON COLUMN messages.dead_cause.cause IS 'Names the cause: the same in each triage that finds the same queue, result, error and pattern.';
COMMENT ON COLUMN messages.dead_cause.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.dead_cause.result IS 'How they died.';
COMMENT ON COLUMN messages.dead_cause.error IS 'The class of the error, if the consumer gave one. Untrusted.';
COMMENT ON COLUMN messages.dead_cause.pattern IS 'The words that their messages share, with * for the others, # for numbers and ids, ? for quoted texts; cut off. Untrusted.';
COMMENT ON COLUMN messages.dead_cause.verdict IS 'new (only in the last quarter of the window), growing, steady or fading.';
COMMENT ON COLUMN messages.dead_cause.dead IS 'How many died in the window.';
COMMENT ON COLUMN messages.dead_cause.undecided IS 'Of them, about how many nothing was decided.';
COMMENT ON COLUMN messages.dead_cause.requeued IS 'Of them, how many were requeued.';
COMMENT ON COLUMN messages.dead_cause.dismissed IS 'Of them, how many were dismissed.';
COMMENT ON COLUMN messages.dead_cause.died_again IS 'Of those that were requeued, how many died again, of whatever cause.';
COMMENT ON COLUMN messages.dead_cause.first_at IS 'The first death in the window.';
COMMENT ON COLUMN messages.dead_cause.last_at IS 'The last death in the window.';
COMMENT ON COLUMN messages.dead_cause.series_from IS 'When the first step of the series begins.';
COMMENT ON COLUMN messages.dead_cause.series_step IS 'How long a step is: an hour or a day.';
COMMENT ON COLUMN messages.dead_cause.series IS 'How many died in each step.';
COMMENT ON COLUMN messages.dead_cause.fingerprints IS 'What requeue_dead and lease_dead take, most frequent first; at most 1000.';
COMMENT ON COLUMN messages.dead_cause.sample_ids IS 'The newest dead messages, at most five.';
COMMENT ON COLUMN messages.dead_cause.sample_references IS 'Their references, cut off. Untrusted.';

-- It takes ids too now. docs/decisions/0007-upgrade-side-by-side.md
DO $$ BEGIN
    IF to_regprocedure('messages.lease_dead(text, integer, interval, text, text[], text)') IS NOT NULL THEN
        ALTER FUNCTION messages.lease_dead(text, integer, interval, text, text[], text) RENAME TO superseded_lease_dead;
    END IF;
END $$;
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
