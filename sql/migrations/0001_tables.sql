CREATE TABLE messages.queue (
    queue_name     text        PRIMARY KEY CHECK (queue_name ~ '^[a-z][a-z0-9_]{0,47}$'),
    max_attempts   smallint    NOT NULL DEFAULT 5 CHECK (max_attempts BETWEEN 1 AND 1000),
    lease_for      interval    NOT NULL DEFAULT '5 minutes' CHECK (lease_for > '0' AND lease_for <= '12 hours'),
    notify         text        NOT NULL DEFAULT 'always' CHECK (notify IN ('always', 'gated', 'off')),
    max_body_bytes integer     NOT NULL DEFAULT 1048576 CHECK (max_body_bytes BETWEEN 1 AND 268435455),
    paused         boolean     NOT NULL DEFAULT false,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE messages.queue IS 'A named stream of messages and its policy.';
COMMENT ON COLUMN messages.queue.queue_name IS 'Lower-case letter, then letters, digits and underscores; at most 48 characters.';
COMMENT ON COLUMN messages.queue.max_attempts IS 'How often a message is delivered at most; 1 makes an expired lease a dead message at once.';
COMMENT ON COLUMN messages.queue.lease_for IS 'How long a lease lasts when the consumer does not say.';
COMMENT ON COLUMN messages.queue.notify IS 'always: every publish rings; gated: one uncommitted publisher at a time rings; off: consumers poll.';
COMMENT ON COLUMN messages.queue.max_body_bytes IS 'Largest body that a publish may bring, as the size of its jsonb value.';
COMMENT ON COLUMN messages.queue.paused IS 'While true nothing can be leased; publishing goes on.';
COMMENT ON COLUMN messages.queue.created_at IS 'When the queue was created.';

-- The lease columns are in no index and the pages keep room (fillfactor 50), so that a lease is a HOT update.
-- Autovacuum: stock cost limits, because an eager vacuum rereads the whole heap for nothing while a snapshot is held.
CREATE TABLE messages.message (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    visible_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    lock_expires_at timestamptz,
    leased_at       timestamptz,
    expires_at      timestamptz,
    lock_token      uuid,
    requeued_from   bigint,
    priority        smallint    NOT NULL DEFAULT 0,
    attempts        smallint    NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    requeues        smallint    NOT NULL DEFAULT 0 CHECK (requeues >= 0),
    queue_name      text        NOT NULL DEFAULT 'default',
    locked_by       text,
    reference       text,
    headers         jsonb,
    message         jsonb       NOT NULL,
    CONSTRAINT message_token_needs_a_lease CHECK (lock_token IS NULL OR lock_expires_at IS NOT NULL)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off
);
CREATE INDEX message_lease_idx ON messages.message (queue_name, priority DESC, visible_at, id);
COMMENT ON TABLE messages.message IS 'Messages that are not finished: waiting, delayed or leased.';
COMMENT ON COLUMN messages.message.id IS 'The id for ever: the archive keeps it.';
COMMENT ON COLUMN messages.message.created_at IS 'When it was published.';
COMMENT ON COLUMN messages.message.visible_at IS 'Not leased before this moment. A lease does not change it; a delayed release does.';
COMMENT ON COLUMN messages.message.lock_expires_at IS 'End of the lease; NULL while nobody holds one.';
COMMENT ON COLUMN messages.message.leased_at IS 'When the last lease began.';
COMMENT ON COLUMN messages.message.expires_at IS 'If it was not finished by then, it is archived as expired.';
COMMENT ON COLUMN messages.message.lock_token IS 'The fence: archive, extend and release need it. NULL under a lease taken by plain SQL.';
COMMENT ON COLUMN messages.message.requeued_from IS 'The archived message that this one repeats.';
COMMENT ON COLUMN messages.message.priority IS 'Higher first.';
COMMENT ON COLUMN messages.message.attempts IS 'Deliveries that count towards max_attempts of the queue.';
COMMENT ON COLUMN messages.message.requeues IS 'How many times this work was requeued from the archive.';
COMMENT ON COLUMN messages.message.queue_name IS 'The queue that it waits in.';
COMMENT ON COLUMN messages.message.locked_by IS 'Who holds the lease, in its own words.';
COMMENT ON COLUMN messages.message.reference IS 'The publisher''s own key.';
COMMENT ON COLUMN messages.message.headers IS 'Metadata beside the body.';
COMMENT ON COLUMN messages.message.message IS 'The body. Untrusted.';

CREATE TABLE messages.message_archive (
    id            bigint      NOT NULL DEFAULT nextval('messages.message_id_seq'),
    created_at    timestamptz NOT NULL,
    archived_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_at     timestamptz,
    requeued_from bigint,
    priority      smallint    NOT NULL DEFAULT 0,
    attempts      smallint    NOT NULL DEFAULT 0,
    requeues      smallint    NOT NULL DEFAULT 0,
    queue_name    text        NOT NULL DEFAULT 'default',
    result        text        NOT NULL
        CONSTRAINT archive_result CHECK (result IN ('success', 'failed', 'rejected', 'lock_expired', 'expired')),
    handled_by    text,
    details       text,
    reference     text,
    remedy        text,
    remedied_at   timestamptz,
    remedied_by   text,
    requeued_as   bigint,
    dismissed_for text,
    headers       jsonb,
    message       jsonb       NOT NULL,
    CONSTRAINT archive_remedy CHECK (CASE remedy
        WHEN 'requeued'  THEN requeued_as IS NOT NULL AND dismissed_for IS NULL
        WHEN 'dismissed' THEN requeued_as IS NULL AND dismissed_for IS NOT NULL
        ELSE remedy IS NULL AND requeued_as IS NULL AND dismissed_for IS NULL END),
    CONSTRAINT archive_success_needs_no_remedy CHECK (remedy IS NULL OR result <> 'success')
) PARTITION BY RANGE (archived_at);
CREATE TABLE messages.message_archive_default PARTITION OF messages.message_archive DEFAULT;
CREATE INDEX message_archive_id_idx ON messages.message_archive (id);
CREATE INDEX message_archive_archived_at_idx ON messages.message_archive USING brin (archived_at);
COMMENT ON TABLE messages.message_archive IS 'Finished messages, each with exactly one result; monthly partitions.';
COMMENT ON COLUMN messages.message_archive.id IS 'Id of the message; drawn anew only for a plain INSERT that names none.';
COMMENT ON COLUMN messages.message_archive.created_at IS 'When it was published.';
COMMENT ON COLUMN messages.message_archive.archived_at IS 'When it was finished.';
COMMENT ON COLUMN messages.message_archive.leased_at IS 'When the last lease began; NULL if it was never leased.';
COMMENT ON COLUMN messages.message_archive.requeued_from IS 'The archived message that this one repeated.';
COMMENT ON COLUMN messages.message_archive.priority IS 'As published.';
COMMENT ON COLUMN messages.message_archive.attempts IS 'Deliveries that it took.';
COMMENT ON COLUMN messages.message_archive.requeues IS 'How many times this work had been requeued before.';
COMMENT ON COLUMN messages.message_archive.queue_name IS 'The queue that it was published to.';
COMMENT ON COLUMN messages.message_archive.result IS 'success, failed (handler error), rejected (invalid), lock_expired (abandoned), expired (too late).';
COMMENT ON COLUMN messages.message_archive.handled_by IS 'Who finished it, in its own words.';
COMMENT ON COLUMN messages.message_archive.details IS 'Reason of a rejection or failure.';
COMMENT ON COLUMN messages.message_archive.reference IS 'The publisher''s own key.';
COMMENT ON COLUMN messages.message_archive.remedy IS 'What was decided about a dead message: requeued or dismissed.';
COMMENT ON COLUMN messages.message_archive.remedied_at IS 'When that was decided.';
COMMENT ON COLUMN messages.message_archive.remedied_by IS 'Who decided.';
COMMENT ON COLUMN messages.message_archive.requeued_as IS 'Id of the message that repeats it.';
COMMENT ON COLUMN messages.message_archive.dismissed_for IS 'Why it was dismissed.';
COMMENT ON COLUMN messages.message_archive.headers IS 'Metadata beside the body.';
COMMENT ON COLUMN messages.message_archive.message IS 'The body. Untrusted.';

CREATE TABLE messages.dead_message (
    id              bigint      PRIMARY KEY,
    archived_at     timestamptz NOT NULL,
    lock_expires_at timestamptz,
    lock_token      uuid,
    queue_name      text        NOT NULL,
    result          text        NOT NULL,
    locked_by       text
);
CREATE INDEX dead_message_queue_idx ON messages.dead_message (queue_name, id);
COMMENT ON TABLE messages.dead_message IS 'Dead messages about which nothing was decided yet: the work list of remediation.';
COMMENT ON COLUMN messages.dead_message.id IS 'Id of the archived message.';
COMMENT ON COLUMN messages.dead_message.archived_at IS 'When it died; names its archive partition.';
COMMENT ON COLUMN messages.dead_message.lock_expires_at IS 'End of the lease of who is deciding; NULL while nobody is.';
COMMENT ON COLUMN messages.dead_message.lock_token IS 'The fence: requeue and dismiss need it.';
COMMENT ON COLUMN messages.dead_message.queue_name IS 'The queue that it was published to.';
COMMENT ON COLUMN messages.dead_message.result IS 'How it died.';
COMMENT ON COLUMN messages.dead_message.locked_by IS 'Who holds the lease.';

-- A sequence is the one thing in PostgreSQL that is updated in place: no dead versions, no row lock, no snapshot. So the
-- two marks of a band are sequences that hold microseconds since 1970. docs/decisions/0002-low-water-in-sequences.md
CREATE TABLE messages.band (
    queue_name text     NOT NULL REFERENCES messages.queue ON DELETE CASCADE,
    priority   smallint NOT NULL,
    low_water  regclass NOT NULL,
    sweep_due  regclass NOT NULL,
    PRIMARY KEY (queue_name, priority)
);
COMMENT ON TABLE messages.band IS 'The messages of one queue and priority: where a lease starts to look.';
COMMENT ON COLUMN messages.band.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.band.priority IS 'The priority.';
COMMENT ON COLUMN messages.band.low_water IS 'Sequence: a lease looks from this visible_at on. A hint, never the truth: a sweep looks below it.';
COMMENT ON COLUMN messages.band.sweep_due IS 'Sequence: the moment from which a lease may pay for the next sweep.';
CREATE SEQUENCE messages.band_seq AS integer;
COMMENT ON SEQUENCE messages.band_seq IS 'Numbers the sequences of the bands.';

CREATE TABLE messages.upkeep_run (
    only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    finished_at timestamptz NOT NULL,
    done_by     text        NOT NULL
);
COMMENT ON TABLE messages.upkeep_run IS 'The last upkeep.';
COMMENT ON COLUMN messages.upkeep_run.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.upkeep_run.finished_at IS 'When it finished.';
COMMENT ON COLUMN messages.upkeep_run.done_by IS 'The application_name that ran it: pg_cron or a worker or a DAG.';

-- What the verbs return. Types, so that a later migration can add a column without a new signature.
CREATE TYPE messages.leased_message AS (
    id bigint, queue_name text, message jsonb, headers jsonb, reference text, priority smallint, attempts smallint,
    max_attempts smallint, requeues smallint, created_at timestamptz, lock_token uuid, lock_expires_at timestamptz
);
COMMENT ON TYPE messages.leased_message IS 'A message as a consumer gets it; no token and no expiry after consume.';
CREATE TYPE messages.leased_dead_message AS (
    id bigint, queue_name text, result text, details text, message jsonb, headers jsonb, reference text,
    attempts smallint, requeues smallint, created_at timestamptz, archived_at timestamptz, handled_by text,
    lock_token uuid, lock_expires_at timestamptz
);
COMMENT ON TYPE messages.leased_dead_message IS 'A dead message as who decides about it gets it.';
CREATE TYPE messages.queue_status AS (
    queue_name text, paused boolean, depth bigint, ready bigint, leased bigint, delayed bigint, oldest_age interval,
    dead bigint, upkeep_age interval
);
COMMENT ON TYPE messages.queue_status IS 'A queue in numbers.';
