-- Two doors: plain SQL names messages.message and messages.message_archive, whose statement triggers check it. The functions
-- write the tables behind them, message_rows and archive_rows, and meet no trigger. docs/explanation/how-the-queue-works.md

-- An interval is checked by the time that it leads to: see check_duration().
CREATE TABLE messages.queue (
    queue_name       text        PRIMARY KEY CHECK (queue_name ~ '^[a-z][a-z0-9_]{0,47}$'),
    max_attempts     smallint    NOT NULL DEFAULT 15 CHECK (max_attempts BETWEEN 1 AND 1000),
    lease_for        interval    NOT NULL DEFAULT '5 minutes' CHECK (timestamp '2001-02-01' + lease_for > '2001-02-01' AND timestamp '2003-07-01' + lease_for <= '2003-07-01 12:00'),
    backoff_first    interval    NOT NULL DEFAULT '1 second' CHECK (timestamp '2001-02-01' + backoff_first >= '2001-02-01'),
    backoff_max      interval    NOT NULL DEFAULT '1 hour' CHECK (timestamp '2001-02-01' + backoff_max >= '2001-02-01'),
    dedup_window     interval    NOT NULL DEFAULT '1 day' CHECK (timestamp '2001-02-01' + dedup_window > '2001-02-01'),
    retention        interval    CHECK (timestamp '2001-02-01' + retention > '2001-02-01'),
    notify           text        NOT NULL DEFAULT 'always' CHECK (notify IN ('always', 'gated', 'off')),
    on_dead_head     text        NOT NULL DEFAULT 'block' CHECK (on_dead_head IN ('block', 'skip')),
    max_body_bytes   integer     NOT NULL DEFAULT 1048576 CHECK (max_body_bytes BETWEEN 1 AND 268435455),
    fair_by          text        CHECK (fair_by IN ('group', 'topic')),
    max_leased       integer     CHECK (max_leased >= 1),
    max_leased_per_group integer NOT NULL DEFAULT 1 CHECK (max_leased_per_group >= 1),
    rate_limit       integer     CHECK (rate_limit >= 1),
    rate_period      interval    NOT NULL DEFAULT '1 second' CHECK (timestamp '2001-02-01' + rate_period > '2001-02-01'),
    rate_burst       integer     NOT NULL DEFAULT 1 CHECK (rate_burst BETWEEN 1 AND 10000),
    rate_mark        regclass,
    scan_due         regclass,
    lock_key         integer     NOT NULL DEFAULT hashtext(gen_random_uuid()::text),
    handler_timeout  interval    CHECK (handler_timeout > '0'),
    paused           boolean     NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE messages.queue IS 'A named stream of messages and its policy.';
COMMENT ON COLUMN messages.queue.queue_name IS 'A lower-case letter, then letters, digits and underscores; at most 48 characters.';
COMMENT ON COLUMN messages.queue.max_attempts IS 'How many times a message is delivered at most; with 1, an expired lease makes it a dead message at once.';
COMMENT ON COLUMN messages.queue.lease_for IS 'How long a lease lasts by default.';
COMMENT ON COLUMN messages.queue.backoff_first IS 'Pause after the first failed attempt; doubles with each further one, with jitter.';
COMMENT ON COLUMN messages.queue.backoff_max IS 'Longest pause between attempts.';
COMMENT ON COLUMN messages.queue.dedup_window IS 'How long a dedup_key is remembered by default.';
COMMENT ON COLUMN messages.queue.retention IS 'How long the archive keeps finished messages; NULL forever. Dead messages are kept until they are resolved.';
COMMENT ON COLUMN messages.queue.notify IS 'always: every publish notifies; gated: one uncommitted publisher at a time notifies; off: consumers poll.';
COMMENT ON COLUMN messages.queue.on_dead_head IS 'What a dead message does to its group: block it until the message is resolved, or skip to the next.';
COMMENT ON COLUMN messages.queue.max_body_bytes IS 'Largest body that can be published, as the size of its jsonb value.';
COMMENT ON COLUMN messages.queue.fair_by IS 'What the keys are that take turns, so that none waits for the backlog of another: group (the group_key) or topic (its first word), unless a header fair_key says otherwise; NULL for the order of publishing.';
COMMENT ON COLUMN messages.queue.max_leased IS 'Largest number of messages that are leased at once; NULL for any number.';
COMMENT ON COLUMN messages.queue.max_leased_per_group IS 'Largest number of messages of one group that are leased at the same time. Only 1 keeps their order.';
COMMENT ON COLUMN messages.queue.rate_limit IS 'How many messages may be leased in a rate_period, evenly spread; each delivery counts. NULL for any number.';
COMMENT ON COLUMN messages.queue.rate_period IS 'The period of rate_limit.';
COMMENT ON COLUMN messages.queue.rate_burst IS 'How many messages may be leased at once after a pause; the next have to wait for their time.';
COMMENT ON COLUMN messages.queue.rate_mark IS 'Sequence: the time up to which the leases that have begun use up the rate_limit. NULL until there was one.';
COMMENT ON COLUMN messages.queue.scan_due IS 'Sequence: the time from which a session may scan the queue again.';
COMMENT ON COLUMN messages.queue.lock_key IS 'The first key of its advisory locks, so that only a role that may read this table can compute them. The second is that of a group, 0 to 1023, -1 for a notification, or -2 for the rate_mark.';
COMMENT ON COLUMN messages.queue.handler_timeout IS 'How long a handler may take for a message before its consumer no longer renews the lease; NULL forever.';
COMMENT ON COLUMN messages.queue.paused IS 'While true nothing can be leased; publishing continues.';
COMMENT ON COLUMN messages.queue.created_at IS 'When the queue was created.';

-- A sequence is the one thing in PostgreSQL that is updated in place: no dead versions, no row lock, no snapshot. A mark is
-- one that holds a time, in microseconds since 1970.
CREATE SEQUENCE messages.mark_number;
COMMENT ON SEQUENCE messages.mark_number IS 'Numbers the sequences of lanes and queues.';

CREATE TABLE messages.lane (
    queue_name text     NOT NULL REFERENCES messages.queue ON DELETE CASCADE,
    priority   smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    used       boolean  NOT NULL DEFAULT false,
    mark       regclass,
    PRIMARY KEY (queue_name, priority)
) WITH (fillfactor = 50);
COMMENT ON TABLE messages.lane IS 'Ten lanes for each queue, one for each priority.';
COMMENT ON COLUMN messages.lane.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.lane.priority IS 'The priority, 0 to 9; higher is leased first.';
COMMENT ON COLUMN messages.lane.used IS 'Whether a message was ever published at this priority. Leases pass over the other lanes.';
COMMENT ON COLUMN messages.lane.mark IS 'Sequence: a lease looks from this visible_at on. A hint, never the truth. NULL until maintenance makes it: from the beginning.';

CREATE TABLE messages.unused_sequence (
    sequence regclass    PRIMARY KEY,
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE messages.unused_sequence IS 'Sequences of queues that were dropped. Maintenance drops them an hour later, when no session uses them any more.';
COMMENT ON COLUMN messages.unused_sequence.sequence IS 'The sequence.';
COMMENT ON COLUMN messages.unused_sequence.since IS 'When its queue was dropped.';

CREATE SEQUENCE messages.notifications_paused_until MINVALUE -1 MAXVALUE 100000000000000000;
COMMENT ON SEQUENCE messages.notifications_paused_until IS 'Microseconds since 1970: until then no notification is sent, because the notification queue of the server is half full.';

CREATE SEQUENCE messages.message_id_seq;
COMMENT ON SEQUENCE messages.message_id_seq IS 'Numbers the messages.';

CREATE TABLE messages.message (
    id              bigint      NOT NULL DEFAULT nextval('messages.message_id_seq'),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    visible_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    lock_expires_at timestamptz,
    leased_at       timestamptz,
    expires_at      timestamptz,
    lock_token      uuid,
    requeued_from   bigint,
    priority        smallint    NOT NULL DEFAULT 4,
    attempts        smallint    NOT NULL DEFAULT 0,
    requeues        smallint    NOT NULL DEFAULT 0,
    queue_name      text        NOT NULL DEFAULT 'default',
    locked_by       text,
    reference       text,
    headers         jsonb,
    message         jsonb       NOT NULL,
    due_at          timestamptz,
    topic           text,
    group_key       text,
    place           smallint CHECK (place >= 1),
    fair_key        text,
    last_error      text,
    PRIMARY KEY (id)
) PARTITION BY LIST (id);
-- The lease columns are in no index and the pages keep room (fillfactor 50), so that a lease is a HOT update.
-- Autovacuum: stock cost limits, because an eager vacuum rereads the whole heap for nothing while a snapshot is held.
CREATE TABLE messages.message_rows PARTITION OF messages.message DEFAULT WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off
);
CREATE INDEX message_order_idx ON messages.message_rows (queue_name, priority DESC, visible_at);
CREATE INDEX message_reference_idx ON messages.message_rows (reference text_pattern_ops) WHERE reference IS NOT NULL;
-- A message behind others of its group has a visible_at of infinity and lies at the end of the group.
-- A group has as many places as max_leased_per_group says; a message without a place waits outside of the lane.
CREATE UNIQUE INDEX message_place_idx ON messages.message_rows (queue_name, group_key, place) WHERE place IS NOT NULL;
CREATE INDEX message_group_idx ON messages.message_rows (queue_name, group_key, visible_at, requeues DESC, id) WHERE group_key IS NOT NULL;
-- The last place that a key has in a lane, whether it is ready or delayed. A message in its group gets a place when it enters.
CREATE INDEX message_fair_idx ON messages.message_rows (queue_name, fair_key, priority, coalesce(due_at, visible_at)) WHERE fair_key IS NOT NULL AND visible_at < 'infinity';
COMMENT ON TABLE messages.message_rows IS 'The rows of messages.message. The functions name this table and meet no trigger.';
COMMENT ON TABLE messages.message IS 'Messages that are not finished: waiting, delayed or leased. What plain SQL writes here is checked.';
COMMENT ON COLUMN messages.message.id IS 'The id forever: the archive keeps it.';
COMMENT ON COLUMN messages.message.created_at IS 'When it was published.';
COMMENT ON COLUMN messages.message.visible_at IS 'Not leased before this time. A lease does not change it. infinity: it waits behind others of its group.';
COMMENT ON COLUMN messages.message.lock_expires_at IS 'End of the lease; NULL while nobody holds one.';
COMMENT ON COLUMN messages.message.leased_at IS 'When the last lease began.';
COMMENT ON COLUMN messages.message.expires_at IS 'If it is neither leased nor finished by then, it is archived as expired.';
COMMENT ON COLUMN messages.message.lock_token IS 'The fence: archive, extend and release need it. NULL under a lease taken by plain SQL.';
COMMENT ON COLUMN messages.message.requeued_from IS 'The archived message that this one repeats.';
COMMENT ON COLUMN messages.message.priority IS '0 to 9; higher is leased first.';
COMMENT ON COLUMN messages.message.attempts IS 'Deliveries that count towards max_attempts of the queue.';
COMMENT ON COLUMN messages.message.requeues IS 'How many times this work was requeued from the archive.';
COMMENT ON COLUMN messages.message.queue_name IS 'The queue that it waits in.';
COMMENT ON COLUMN messages.message.locked_by IS 'Who holds the lease, as the consumer named itself.';
COMMENT ON COLUMN messages.message.reference IS 'The publisher''s own key.';
COMMENT ON COLUMN messages.message.headers IS 'Metadata next to the body.';
COMMENT ON COLUMN messages.message.message IS 'The body. Untrusted.';
COMMENT ON COLUMN messages.message.due_at IS 'Its place in the order, where it is not visible_at: it takes it again at the end of a delay, or when it no longer waits behind others of its group. Nothing is due then.';
COMMENT ON COLUMN messages.message.topic IS 'Words with dots between them, by which publish_topic chooses the queues.';
COMMENT ON COLUMN messages.message.group_key IS 'Messages of a group are leased one at a time, in the order in which they were published; or as many at once as max_leased_per_group of the queue says.';
COMMENT ON COLUMN messages.message.place IS 'Its place in its group, 1 to max_leased_per_group; NULL while it waits for one, or without a group.';
COMMENT ON COLUMN messages.message.fair_key IS 'The key whose turn it takes, in a queue with fair_by; "" for messages without one. NULL: it was published without turns.';
COMMENT ON COLUMN messages.message.last_error IS 'Why it was last given back: the class and text of the error, at most 500 characters; a text without a class begins with a space. NULL if no attempt failed so far.';

CREATE TABLE messages.timer (
    queue_name text        NOT NULL,
    at         timestamptz NOT NULL,
    lock_token uuid,
    ids        bigint[]    NOT NULL,
    group_key  text
) WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1,
    vacuum_truncate = off
);
CREATE INDEX timer_at_idx ON messages.timer (queue_name, at);
CREATE INDEX timer_group_idx ON messages.timer (queue_name, at) WHERE group_key IS NOT NULL;
ALTER TABLE messages.timer REPLICA IDENTITY FULL;      -- two rows may be equal
COMMENT ON TABLE messages.timer IS 'When somebody looks at messages again: one row for each call of lease, for messages that got a delay, that expire, or that have just entered their lanes; and one for a group that may have room.';
COMMENT ON COLUMN messages.timer.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.timer.at IS 'The time.';
COMMENT ON COLUMN messages.timer.lock_token IS 'The lease that ends then; NULL for a lease taken by plain SQL, and where it is about no lease.';
COMMENT ON COLUMN messages.timer.ids IS 'The messages.';
COMMENT ON COLUMN messages.timer.group_key IS 'The group, of which the next may enter its lane; NULL for messages.';


-- The archive is also a log: ids and times are drawn before the commit, so only the transaction tells what a reader has
-- seen. docs/decisions/0008-the-archive-as-a-log.md
CREATE TABLE messages.message_archive (
    id            bigint      NOT NULL DEFAULT nextval('messages.message_id_seq'),
    created_at    timestamptz NOT NULL,
    archived_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_at     timestamptz,
    requeued_from bigint,
    priority      smallint    NOT NULL DEFAULT 4,
    attempts      smallint    NOT NULL DEFAULT 0,
    requeues      smallint    NOT NULL DEFAULT 0,
    queue_name    text        NOT NULL DEFAULT 'default',
    result        text        NOT NULL,
    handled_by    text,
    details       text,
    reference     text,
    resolution        text,
    resolved_at   timestamptz,
    resolved_by   text,
    requeued_as   bigint,
    dismissed_for text,
    headers       jsonb,
    message       jsonb       NOT NULL,
    topic         text,
    group_key     text,
    fingerprint   text,
    output        jsonb,
    failure       jsonb,
    xid           bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint
) PARTITION BY RANGE (archived_at);
CREATE TABLE messages.archive_rows PARTITION OF messages.message_archive
    FOR VALUES FROM (MINVALUE) TO (MAXVALUE) PARTITION BY RANGE (archived_at);
CREATE TABLE messages.message_archive_default PARTITION OF messages.archive_rows DEFAULT;
CREATE INDEX message_archive_id_idx ON messages.archive_rows (id);
-- A publication needs this of a table whose rows change: docs/how-to/backup.md. A primary key of id and archived_at would
-- tempt the planner to walk it where a range of pages is to be read.
ALTER TABLE messages.message_archive REPLICA IDENTITY FULL;
ALTER TABLE messages.archive_rows REPLICA IDENTITY FULL;
ALTER TABLE messages.message_archive_default REPLICA IDENTITY FULL;
CREATE INDEX message_archive_ranges_idx ON messages.archive_rows USING brin (archived_at, xid) WITH (autosummarize = on);
CREATE INDEX message_archive_reference_idx ON messages.archive_rows (reference text_pattern_ops) WHERE reference IS NOT NULL;
CREATE INDEX message_archive_dead_idx ON messages.archive_rows (fingerprint, archived_at) WHERE fingerprint IS NOT NULL;
-- A pipeline that was killed and starts again counts through this index what it had done. Few rows are resolved.
CREATE INDEX message_archive_resolved_by_idx ON messages.archive_rows (resolved_by, resolved_at) WHERE resolved_by IS NOT NULL;
COMMENT ON TABLE messages.message_archive IS 'Finished messages, each with exactly one result. What plain SQL inserts here is checked.';
COMMENT ON TABLE messages.archive_rows IS 'The rows of messages.message_archive, partitioned by archived_at. The functions name this table and meet no trigger.';
COMMENT ON COLUMN messages.message_archive.id IS 'Id of the message; a new one only after a plain INSERT that gives none.';
COMMENT ON COLUMN messages.message_archive.created_at IS 'When it was published.';
COMMENT ON COLUMN messages.message_archive.archived_at IS 'When it was finished.';
COMMENT ON COLUMN messages.message_archive.leased_at IS 'When the last lease began; NULL if it was never leased.';
COMMENT ON COLUMN messages.message_archive.requeued_from IS 'The archived message that this one repeated.';
COMMENT ON COLUMN messages.message_archive.priority IS 'As published.';
COMMENT ON COLUMN messages.message_archive.attempts IS 'Deliveries that it took.';
COMMENT ON COLUMN messages.message_archive.requeues IS 'How many times this work had been requeued before.';
COMMENT ON COLUMN messages.message_archive.queue_name IS 'The queue that it was published to.';
COMMENT ON COLUMN messages.message_archive.result IS 'success, failed (handler error), rejected (invalid), lock_expired (abandoned), expired (too late), cancelled (not wanted any more). What is neither success nor cancelled is dead.';
COMMENT ON COLUMN messages.message_archive.handled_by IS 'Who finished it, as the consumer named itself.';
COMMENT ON COLUMN messages.message_archive.details IS 'Reason of a rejection or failure.';
COMMENT ON COLUMN messages.message_archive.reference IS 'The publisher''s own key.';
COMMENT ON COLUMN messages.message_archive.resolution IS 'What was done about a dead message: requeued or dismissed.';
COMMENT ON COLUMN messages.message_archive.resolved_at IS 'When that was done.';
COMMENT ON COLUMN messages.message_archive.resolved_by IS 'Who did it.';
COMMENT ON COLUMN messages.message_archive.requeued_as IS 'Id of the message that repeats it.';
COMMENT ON COLUMN messages.message_archive.dismissed_for IS 'Why it was dismissed.';
COMMENT ON COLUMN messages.message_archive.headers IS 'Metadata next to the body.';
COMMENT ON COLUMN messages.message_archive.message IS 'The body. Untrusted.';
COMMENT ON COLUMN messages.message_archive.topic IS 'As published.';
COMMENT ON COLUMN messages.message_archive.group_key IS 'As published.';
COMMENT ON COLUMN messages.message_archive.fingerprint IS 'The same for dead messages with the same cause: error and message without numbers, ids and quoted texts.';
COMMENT ON COLUMN messages.message_archive.output IS 'What the handler returned.';
COMMENT ON COLUMN messages.message_archive.failure IS 'The last failure: error, message, traceback; of a DAG run also its cause, and the task_id and log_url.';
COMMENT ON COLUMN messages.message_archive.xid IS 'The transaction that archived it: its place in the log.';

CREATE TABLE messages.archive_policy (
    only_row        boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    partition_by    text        NOT NULL CHECK (partition_by IN ('day', 'month')),
    retention_applied_at     timestamptz,
    removals        bigint      NOT NULL DEFAULT 0,
    lock_key        integer     NOT NULL DEFAULT hashtext(gen_random_uuid()::text)
);
INSERT INTO messages.archive_policy (partition_by) VALUES ('month');
DO $$ BEGIN
    EXECUTE format('ALTER TABLE messages.message_archive_default ADD CONSTRAINT archived_before_the_archive_begins CHECK (archived_at >= %L)',
                   date_trunc('month', now(), 'UTC'));
END $$;
COMMENT ON TABLE messages.archive_policy IS 'How the archive is kept.';
COMMENT ON COLUMN messages.archive_policy.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.archive_policy.partition_by IS 'The size of the partitions that are made from now on.';
COMMENT ON COLUMN messages.archive_policy.retention_applied_at IS 'When retention last removed everything that was due.';
COMMENT ON COLUMN messages.archive_policy.removals IS 'How many removals of messages have been recorded.';
COMMENT ON COLUMN messages.archive_policy.lock_key IS 'Part of the keys of the locks of exports, so that only a role that may read this table can compute them.';

CREATE TABLE messages.dropped_queue (
    queue_name text        PRIMARY KEY,
    retention  interval    NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE messages.dropped_queue IS 'What was promised for the archive of queues that were dropped. Forgotten a day after the last of it was removed.';
COMMENT ON COLUMN messages.dropped_queue.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.dropped_queue.retention IS 'How long the archive keeps its messages, unless it is created again, and then has a retention of its own.';
COMMENT ON COLUMN messages.dropped_queue.dropped_at IS 'When it was dropped last.';

CREATE TABLE messages.archive_removal (
    queue_name  text        NOT NULL,
    number      bigint      NOT NULL,
    before_xid  bigint      NOT NULL,
    archived_at timestamptz NOT NULL,
    PRIMARY KEY (queue_name, number)
);
COMMENT ON TABLE messages.archive_removal IS 'What was removed from the archive as a log. A removal that reaches no further than a later one of its queue is left out.';
COMMENT ON COLUMN messages.archive_removal.queue_name IS 'The queue of the messages.';
COMMENT ON COLUMN messages.archive_removal.number IS 'Counts the removals, in the order of their commits.';
COMMENT ON COLUMN messages.archive_removal.before_xid IS 'The place in the log behind the last of them: a reader that had passed it missed nothing.';
COMMENT ON COLUMN messages.archive_removal.archived_at IS 'When the newest of them was archived.';

CREATE TABLE messages.dead_message (
    id              bigint      PRIMARY KEY,
    archived_at     timestamptz NOT NULL,
    lock_expires_at timestamptz,
    lock_token      uuid,
    queue_name      text        NOT NULL,
    result          text        NOT NULL,
    locked_by       text,
    fingerprint     text,
    requeues        smallint    NOT NULL DEFAULT 0,
    group_key       text
);
CREATE INDEX dead_message_oldest_idx ON messages.dead_message (queue_name, archived_at);
CREATE INDEX dead_message_cause_idx ON messages.dead_message (queue_name, fingerprint, id);
CREATE INDEX dead_message_group_idx ON messages.dead_message (queue_name, group_key) WHERE group_key IS NOT NULL;
COMMENT ON TABLE messages.dead_message IS 'Open dead messages: the list of what has to be requeued or dismissed.';
COMMENT ON COLUMN messages.dead_message.id IS 'Id of the archived message.';
COMMENT ON COLUMN messages.dead_message.archived_at IS 'When it died; names its archive partition.';
COMMENT ON COLUMN messages.dead_message.lock_expires_at IS 'End of the lease; NULL while nobody holds one.';
COMMENT ON COLUMN messages.dead_message.lock_token IS 'The fence: requeue and dismiss need it.';
COMMENT ON COLUMN messages.dead_message.queue_name IS 'The queue that it was published to.';
COMMENT ON COLUMN messages.dead_message.result IS 'How it died.';
COMMENT ON COLUMN messages.dead_message.locked_by IS 'Who holds the lease.';
COMMENT ON COLUMN messages.dead_message.fingerprint IS 'The cause, as in the archive.';
COMMENT ON COLUMN messages.dead_message.requeues IS 'How many times this work had been requeued, as in the archive.';
COMMENT ON COLUMN messages.dead_message.group_key IS 'Its group, which waits for the resolution if on_dead_head of the queue is block.';

CREATE TABLE messages.failed_attempt (
    message_id  bigint      NOT NULL,
    attempt     smallint    NOT NULL,
    queue_name  text        NOT NULL,
    leased_at   timestamptz,
    failed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    handled_by  text,
    fingerprint text        NOT NULL,
    failure     jsonb       NOT NULL,
    PRIMARY KEY (message_id, attempt)
);
CREATE INDEX failed_attempt_failed_at_idx ON messages.failed_attempt (failed_at);
CREATE INDEX failed_attempt_queue_name_idx ON messages.failed_attempt (queue_name, failed_at);
COMMENT ON TABLE messages.failed_attempt IS 'Attempts that failed and are or were followed by another, but for those whose lease ended. Kept for 30 days.';
COMMENT ON COLUMN messages.failed_attempt.message_id IS 'The message.';
COMMENT ON COLUMN messages.failed_attempt.attempt IS 'Which of its attempts.';
COMMENT ON COLUMN messages.failed_attempt.queue_name IS 'The queue of the message.';
COMMENT ON COLUMN messages.failed_attempt.leased_at IS 'When it was leased.';
COMMENT ON COLUMN messages.failed_attempt.failed_at IS 'When it was given back.';
COMMENT ON COLUMN messages.failed_attempt.handled_by IS 'Who held the lease.';
COMMENT ON COLUMN messages.failed_attempt.fingerprint IS 'The cause that the message would have died of.';
COMMENT ON COLUMN messages.failed_attempt.failure IS 'As in the archive: error, message, traceback; unfinished, if its consumer ended, perhaps through another message that it had in hand.';

CREATE TABLE messages.dispatch (
    dispatch_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name    text        NOT NULL,
    dag_id        text        NOT NULL,
    run_id        text        NOT NULL,
    on_failure    text        NOT NULL,
    lease_for     interval    NOT NULL,
    dispatched_by text,
    lock_token    uuid        NOT NULL,
    ids           bigint[]    NOT NULL,
    opened_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at    timestamptz,
    seen_at       timestamptz,
    ended_at      timestamptz,
    result        text,
    details       text,
    failures      jsonb,
    UNIQUE (dag_id, run_id)
);
CREATE INDEX dispatch_open_idx ON messages.dispatch (queue_name, dag_id) WHERE ended_at IS NULL;
CREATE INDEX dispatch_ended_at_idx ON messages.dispatch (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX dispatch_ids_idx ON messages.dispatch USING gin (ids);
COMMENT ON TABLE messages.dispatch IS 'Messages that were handed to a DAG run, which finishes them. A row is deleted 30 days after the run ended.';
COMMENT ON COLUMN messages.dispatch.dispatch_id IS 'Numbers the dispatches.';
COMMENT ON COLUMN messages.dispatch.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.dispatch.dag_id IS 'The DAG.';
COMMENT ON COLUMN messages.dispatch.run_id IS 'The run: queue, first message and its attempt.';
COMMENT ON COLUMN messages.dispatch.on_failure IS 'What a failed run does to the messages: retry or fail.';
COMMENT ON COLUMN messages.dispatch.lease_for IS 'How long the messages stay leased after somebody last saw the run alive.';
COMMENT ON COLUMN messages.dispatch.dispatched_by IS 'The dispatcher.';
COMMENT ON COLUMN messages.dispatch.lock_token IS 'The token of the lease.';
COMMENT ON COLUMN messages.dispatch.ids IS 'The messages.';
COMMENT ON COLUMN messages.dispatch.opened_at IS 'When they were leased for the run.';
COMMENT ON COLUMN messages.dispatch.started_at IS 'When the run was known to exist.';
COMMENT ON COLUMN messages.dispatch.seen_at IS 'When the run was last known to be queued or running, or to have ended.';
COMMENT ON COLUMN messages.dispatch.ended_at IS 'When the messages were finished or given back; NULL while the dispatch is open.';
COMMENT ON COLUMN messages.dispatch.result IS 'success, failed, lost (the run was deleted), refused (the run was never made).';
COMMENT ON COLUMN messages.dispatch.details IS 'Why it ended like this.';
COMMENT ON COLUMN messages.dispatch.failures IS 'By task, the errors of tasks that failed for good, while the dispatch is open.';

CREATE TABLE messages.dedup (
    queue_name text        NOT NULL,
    dedup_key  text        NOT NULL,
    id         bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue_name, dedup_key)
);
CREATE INDEX dedup_expires_at_idx ON messages.dedup (expires_at);
CREATE INDEX dedup_id_idx ON messages.dedup (queue_name, id);
COMMENT ON TABLE messages.dedup IS 'The dedup keys that are remembered.';
COMMENT ON COLUMN messages.dedup.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.dedup.dedup_key IS 'The publisher''s key.';
COMMENT ON COLUMN messages.dedup.id IS 'The message that was published under it.';
COMMENT ON COLUMN messages.dedup.expires_at IS 'Until when the key is remembered.';

CREATE TABLE messages.inbox (
    consumer   text        NOT NULL,
    message_id bigint      NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX inbox_handled_at_idx ON messages.inbox (handled_at);
COMMENT ON TABLE messages.inbox IS 'The messages that messages.once() let through, for each consumer, and the requests of act_for().';
COMMENT ON COLUMN messages.inbox.consumer IS 'The consumer that has the effect.';
COMMENT ON COLUMN messages.inbox.message_id IS 'The message that it handled.';
COMMENT ON COLUMN messages.inbox.handled_at IS 'When that was; the row is deleted after 30 days.';

CREATE TABLE messages.topic_binding (
    queue_name text NOT NULL REFERENCES messages.queue ON DELETE CASCADE,
    pattern    text NOT NULL,
    PRIMARY KEY (queue_name, pattern)
);
COMMENT ON TABLE messages.topic_binding IS 'Which topics reach which queues.';
COMMENT ON COLUMN messages.topic_binding.queue_name IS 'The queue that gets a copy.';
COMMENT ON COLUMN messages.topic_binding.pattern IS 'Words with dots between them; * is any word, # is any number of words.';

CREATE TABLE messages.queue_grant (
    queue_name text        NOT NULL REFERENCES messages.queue ON DELETE CASCADE,
    grantee    regrole     NOT NULL,
    privilege  text        NOT NULL CHECK (privilege IN ('publish', 'consume', 'observe')),
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    granted_by text        NOT NULL DEFAULT session_user,
    PRIMARY KEY (queue_name, grantee, privilege)
);
COMMENT ON TABLE messages.queue_grant IS 'Which queues the members of messages_limited reach.';
COMMENT ON COLUMN messages.queue_grant.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.queue_grant.grantee IS 'The role, for itself and its members. Its OID stays when the role is dropped, and then grants nothing.';
COMMENT ON COLUMN messages.queue_grant.privilege IS 'publish, consume (also finish, requeue and dismiss) or observe; consume includes observe.';
COMMENT ON COLUMN messages.queue_grant.granted_at IS 'When it was granted.';
COMMENT ON COLUMN messages.queue_grant.granted_by IS 'Who granted it.';

CREATE TABLE messages.maintenance_run (
    only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    finished_at timestamptz,
    done_by     text,
    next_queue  text,
    cron_at     timestamptz,
    cron_role   text,
    server      bigint,
    CONSTRAINT maintenance_run_done_check CHECK ((finished_at IS NULL) = (done_by IS NULL)),
    CONSTRAINT maintenance_run_cron_check CHECK ((cron_at IS NULL) = (cron_role IS NULL))
);
INSERT INTO messages.maintenance_run DEFAULT VALUES;
COMMENT ON TABLE messages.maintenance_run IS 'The last maintenance run, and the last one of pg_cron.';
COMMENT ON COLUMN messages.maintenance_run.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.maintenance_run.finished_at IS 'When it finished.';
COMMENT ON COLUMN messages.maintenance_run.done_by IS 'The application_name that ran it: pg_cron, a worker or a DAG.';
COMMENT ON COLUMN messages.maintenance_run.cron_at IS 'When pg_cron last ran maintenance, or got the job since; NULL if it never ran it, or no longer has the job.';
COMMENT ON COLUMN messages.maintenance_run.cron_role IS 'The login of the pg_cron job.';
COMMENT ON COLUMN messages.maintenance_run.server IS 'The system identifier of the PostgreSQL server that the queue runs on.';
COMMENT ON COLUMN messages.maintenance_run.next_queue IS 'The queue with which the next run begins, if a statement_timeout left no time for all queues.';

CREATE TABLE messages.maintenance_failure (
    step      text        NOT NULL,
    subject   text        NOT NULL,
    sqlstate  text        NOT NULL,
    error     text        NOT NULL,
    since     timestamptz NOT NULL DEFAULT clock_timestamp(),
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (step, subject)
);
COMMENT ON TABLE messages.maintenance_failure IS 'What maintenance could not do, until it can. Each step, queue and partition fails alone.';
COMMENT ON COLUMN messages.maintenance_failure.step IS 'The function that failed.';
COMMENT ON COLUMN messages.maintenance_failure.subject IS 'The queue or partition; empty if it was the whole step.';
COMMENT ON COLUMN messages.maintenance_failure.sqlstate IS 'The code of the error.';
COMMENT ON COLUMN messages.maintenance_failure.error IS 'Its text, at most 500 characters.';
COMMENT ON COLUMN messages.maintenance_failure.since IS 'When it failed first.';
COMMENT ON COLUMN messages.maintenance_failure.failed_at IS 'When it failed last.';

CREATE TABLE messages.pipeline_run (
    run_id      text        NOT NULL CHECK (run_id <> '' AND length(run_id) <= 250),
    pipeline    text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_by  text        NOT NULL DEFAULT session_user,
    finished_at timestamptz,
    summary     jsonb,
    queue_name  text,
    PRIMARY KEY (started_by, run_id),
    CONSTRAINT pipeline_run_finished_with_summary CHECK ((finished_at IS NULL) = (summary IS NULL))
);
CREATE INDEX pipeline_run_started_at_idx ON messages.pipeline_run (started_at);
COMMENT ON TABLE messages.pipeline_run IS 'Runs of the pipelines: a finished one is not done again. Forgotten after 90 days.';
COMMENT ON COLUMN messages.pipeline_run.run_id IS 'The name of the run among those of its login; in Airflow made of DAG, task and run.';
COMMENT ON COLUMN messages.pipeline_run.pipeline IS 'What it does: drain, export, ...';
COMMENT ON COLUMN messages.pipeline_run.started_at IS 'When it first started; a run that died and is started again is the same run.';
COMMENT ON COLUMN messages.pipeline_run.started_by IS 'The login that started it and alone can continue it.';
COMMENT ON COLUMN messages.pipeline_run.finished_at IS 'When it was done; NULL until then.';
COMMENT ON COLUMN messages.pipeline_run.summary IS 'What it did, as the pipeline reported it.';
COMMENT ON COLUMN messages.pipeline_run.queue_name IS 'The queue that it publishes to; NULL if each row names its own, or if it is not a write of Spark.';

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
COMMENT ON COLUMN messages.publish_stage.stage_id IS 'The name that its job gave it.';
COMMENT ON COLUMN messages.publish_stage.made_by IS 'The login of the job, which alone may stage and publish here.';
COMMENT ON COLUMN messages.publish_stage.expires_at IS 'Maintenance drops it then: a day after the last task began to stage.';

-- A row that breaks a rule fails in its own task, which knows its number.
CREATE TABLE messages.staged_message (
    attempt    bigint      NOT NULL,
    ordinal    bigint      NOT NULL CONSTRAINT ordinal CHECK (ordinal BETWEEN 0 AND 10000000000),
    queue_name text        DEFAULT '' CONSTRAINT queue_name CHECK (queue_name IS NOT NULL),
    message    jsonb       NOT NULL,
    priority   bigint      CONSTRAINT priority CHECK (priority BETWEEN 0 AND 9),
    visible_at timestamptz CONSTRAINT visible_at CHECK (visible_at <= clock_timestamp() + interval '3660 days'),
    expires_at timestamptz CONSTRAINT expires_at CHECK (expires_at BETWEEN '1970-01-01 00:00+00' AND clock_timestamp() + interval '3660 days'),
    headers    jsonb       CONSTRAINT headers CHECK (jsonb_typeof(headers) = 'object' AND pg_column_size(headers) <= 65536),
    -- The longest text that fits into an index entry even if it cannot be compressed.
    reference  text        CONSTRAINT reference CHECK (octet_length(reference) <= 2600),
    topic      text        CONSTRAINT topic CHECK (topic ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' AND length(topic) <= 255),
    group_key  text        CONSTRAINT group_key CHECK (length(group_key) BETWEEN 1 AND 255),
    dedup_key  text        CONSTRAINT dedup_key CHECK (length(dedup_key) BETWEEN 1 AND 255)
);
-- No compression, because max_body_bytes limits the plain value.
ALTER TABLE messages.staged_message ALTER COLUMN message SET STORAGE EXTERNAL;
ALTER TABLE messages.staged_message REPLICA IDENTITY FULL;      -- a publication refuses a table without one
COMMENT ON TABLE messages.staged_message IS 'The columns and rules of each staging table, which is made like it. It has no rows.';
COMMENT ON COLUMN messages.staged_message.attempt IS 'The attempt of a task that staged the row; only one attempt of each task is published.';
COMMENT ON COLUMN messages.staged_message.ordinal IS 'Its place among the rows of its attempt, which is added to visible_at as microseconds.';
COMMENT ON COLUMN messages.staged_message.queue_name IS 'The queue to publish to; "" for the queue of the job.';
COMMENT ON COLUMN messages.staged_message.message IS 'The body. Untrusted.';
COMMENT ON COLUMN messages.staged_message.priority IS '0 to 9; NULL for 4.';
COMMENT ON COLUMN messages.staged_message.visible_at IS 'Not leased before this time; NULL for now.';
COMMENT ON COLUMN messages.staged_message.expires_at IS 'As in messages.message, and so are the other columns.';
COMMENT ON COLUMN messages.staged_message.headers IS 'Metadata next to the body.';
COMMENT ON COLUMN messages.staged_message.reference IS 'The publisher''s own key.';
COMMENT ON COLUMN messages.staged_message.topic IS 'Words with dots between them.';
COMMENT ON COLUMN messages.staged_message.group_key IS 'The group.';
COMMENT ON COLUMN messages.staged_message.dedup_key IS 'A message with a key that is remembered is a duplicate, and is not published.';

-- What maintenance records of each queue. docs/decisions/0021-counts-and-the-page.md
CREATE TABLE messages.history (
    queue_name   text        NOT NULL,
    grain        text        NOT NULL CHECK (grain IN ('minute', 'hour', 'day', 'all')),
    bucket_at    timestamptz NOT NULL,
    depth        bigint,
    depth_max    bigint,
    ready        bigint,
    leased       bigint,
    delayed      bigint,
    dead         bigint,
    oldest_at    timestamptz,
    arrivals     bigint      NOT NULL DEFAULT 0,
    success      bigint      NOT NULL DEFAULT 0,
    failed       bigint      NOT NULL DEFAULT 0,
    rejected     bigint      NOT NULL DEFAULT 0,
    lock_expired bigint      NOT NULL DEFAULT 0,
    expired      bigint      NOT NULL DEFAULT 0,
    cancelled    bigint      NOT NULL DEFAULT 0,
    attempts     bigint      NOT NULL DEFAULT 0,
    wait_max     interval,
    run_max      interval,
    waits        bigint[],
    runs         bigint[],
    PRIMARY KEY (queue_name, grain, bucket_at)
) WITH (fillfactor = 70);
CREATE INDEX history_bucket_at_idx ON messages.history (grain, bucket_at);
COMMENT ON TABLE messages.history IS 'Each queue by the minute, hour and day, as maintenance recorded it. A minute without a row was like the one before, without traffic.';
COMMENT ON COLUMN messages.history.queue_name IS 'The queue; it may have been dropped since. Empty: maintenance ran in this minute.';
COMMENT ON COLUMN messages.history.grain IS 'minute, hour or day, in UTC; all: what the queue holds now and what went through it since the history began.';
COMMENT ON COLUMN messages.history.bucket_at IS 'Where the bucket begins; it ends before the next one.';
COMMENT ON COLUMN messages.history.depth IS 'Unfinished messages at the last maintenance run in the bucket. This column and the five that follow are NULL if there was no maintenance, or nothing had changed.';
COMMENT ON COLUMN messages.history.depth_max IS 'The largest depth that a maintenance run found in the bucket.';
COMMENT ON COLUMN messages.history.ready IS 'How many of these could be leased.';
COMMENT ON COLUMN messages.history.leased IS 'How many were leased.';
COMMENT ON COLUMN messages.history.delayed IS 'How many waited for their time, or behind others of their group.';
COMMENT ON COLUMN messages.history.dead IS 'Open dead messages.';
COMMENT ON COLUMN messages.history.oldest_at IS 'Since when the oldest ready message was ready; NULL: none was.';
COMMENT ON COLUMN messages.history.arrivals IS 'Messages that were published in the bucket.';
COMMENT ON COLUMN messages.history.success IS 'Messages archived as success in the bucket. This and all that follow are counted by archived_at.';
COMMENT ON COLUMN messages.history.failed IS 'Archived as failed.';
COMMENT ON COLUMN messages.history.rejected IS 'Archived as rejected.';
COMMENT ON COLUMN messages.history.lock_expired IS 'Archived as lock_expired.';
COMMENT ON COLUMN messages.history.expired IS 'Archived as expired.';
COMMENT ON COLUMN messages.history.cancelled IS 'Archived as cancelled.';
COMMENT ON COLUMN messages.history.attempts IS 'Deliveries that the archived messages took, together.';
COMMENT ON COLUMN messages.history.wait_max IS 'The longest time from publish to the beginning of the last lease.';
COMMENT ON COLUMN messages.history.run_max IS 'The longest time from lease to archive, of messages that a handler finished.';
COMMENT ON COLUMN messages.history.waits IS 'Pairs of a class of durations and the number of messages in it: class c ends at 2^(c/4) milliseconds.';
COMMENT ON COLUMN messages.history.runs IS 'The same for the time from lease to archive.';

CREATE TABLE messages.history_cause (
    queue_name  text        NOT NULL,
    grain       text        NOT NULL CHECK (grain IN ('minute', 'hour', 'day')),
    bucket_at   timestamptz NOT NULL,
    result      text        NOT NULL,
    fingerprint text        NOT NULL,
    messages    bigint      NOT NULL,
    PRIMARY KEY (queue_name, grain, bucket_at, result, fingerprint)
) WITH (fillfactor = 70);
CREATE INDEX history_cause_seen_idx ON messages.history_cause (queue_name, fingerprint, result, bucket_at);
CREATE INDEX history_cause_bucket_at_idx ON messages.history_cause (grain, bucket_at);
COMMENT ON TABLE messages.history_cause IS 'How many messages of each queue died of which cause, by the minute, hour and day.';
COMMENT ON COLUMN messages.history_cause.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.history_cause.grain IS 'minute, hour or day, in UTC.';
COMMENT ON COLUMN messages.history_cause.bucket_at IS 'Where the bucket begins.';
COMMENT ON COLUMN messages.history_cause.result IS 'How they died.';
COMMENT ON COLUMN messages.history_cause.fingerprint IS 'The cause; other for those beyond the twenty most frequent of a queue and minute.';
COMMENT ON COLUMN messages.history_cause.messages IS 'How many died.';

CREATE TABLE messages.history_progress (
    only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    counted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    counted_xid bigint      NOT NULL,
    counted_id  bigint      NOT NULL,
    next_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_xid   bigint      NOT NULL,
    next_id    bigint      NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE messages.history_progress IS 'How far the history is: what lies between the two positions is counted by the next maintenance run.';
COMMENT ON COLUMN messages.history_progress.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.history_progress.begun_at IS 'Where the history begins.';
COMMENT ON COLUMN messages.history_progress.recorded_at IS 'When maintenance last recorded the queues.';
COMMENT ON COLUMN messages.history_progress.counted_at IS 'Up to here all is counted.';
COMMENT ON COLUMN messages.history_progress.counted_xid IS 'What earlier transactions archived is counted.';
COMMENT ON COLUMN messages.history_progress.counted_id IS 'Messages up to this id are counted.';
COMMENT ON COLUMN messages.history_progress.next_at IS 'When the end of the next range was fixed.';
COMMENT ON COLUMN messages.history_progress.next_xid IS 'The first transaction after the next range.';
COMMENT ON COLUMN messages.history_progress.next_id IS 'The last id of the next range.';

CREATE TABLE messages.history_policy (
    only_row    boolean  PRIMARY KEY DEFAULT true CHECK (only_row),
    minutes_for interval NOT NULL DEFAULT '7 days' CHECK (timestamp '2001-02-01' + minutes_for >= '2001-02-01 02:00'),
    hours_for   interval NOT NULL DEFAULT '400 days' CHECK (timestamp '2001-02-01' + hours_for >= '2001-02-03'),
    days_for    interval CHECK (timestamp '2001-02-01' + days_for >= '2001-02-08'),
    audit_for   interval DEFAULT '400 days' CHECK (timestamp '2001-02-01' + audit_for >= '2001-02-02')
);
INSERT INTO messages.history_policy DEFAULT VALUES;
COMMENT ON TABLE messages.history_policy IS 'How long the history is kept.';
COMMENT ON COLUMN messages.history_policy.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.history_policy.minutes_for IS 'How long minutes are kept.';
COMMENT ON COLUMN messages.history_policy.hours_for IS 'How long hours are kept.';
COMMENT ON COLUMN messages.history_policy.days_for IS 'How long days are kept; NULL forever.';
COMMENT ON COLUMN messages.history_policy.audit_for IS 'How long the audit is kept; NULL forever.';

CREATE TABLE messages.audit (
    audit_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    login       text        NOT NULL DEFAULT session_user,
    application text        NOT NULL DEFAULT current_setting('application_name'),
    acting_user text        DEFAULT left(nullif(current_setting('messages.acting_user', true), ''), 250),
    action      text        NOT NULL,
    queue_name  text,
    arguments   jsonb       NOT NULL,
    affected    bigint
);
CREATE INDEX audit_at_idx ON messages.audit (at);
CREATE INDEX audit_queue_name_idx ON messages.audit (queue_name, at);
COMMENT ON TABLE messages.audit IS 'What was done to the queues by hand. Only functions of the schema write it, and nobody but the owner can change it.';
COMMENT ON COLUMN messages.audit.audit_id IS 'Numbers the entries.';
COMMENT ON COLUMN messages.audit.at IS 'When it was done.';
COMMENT ON COLUMN messages.audit.login IS 'The login that did it.';
COMMENT ON COLUMN messages.audit.application IS 'The application_name of its session.';
COMMENT ON COLUMN messages.audit.acting_user IS 'For whom the login did it, as act_for() named the user; NULL if it was not called.';
COMMENT ON COLUMN messages.audit.action IS 'The verb.';
COMMENT ON COLUMN messages.audit.queue_name IS 'The queue; NULL if the verb names none. It may have been dropped since.';
COMMENT ON COLUMN messages.audit.arguments IS 'What the verb was given, without bodies, headers and tokens.';
COMMENT ON COLUMN messages.audit.affected IS 'How many messages or grants it changed; NULL if the verb does not count.';

-- The columns that record_dead() needs of a message that was archived.
CREATE TYPE messages.ended_message AS (
    id bigint, archived_at timestamptz, queue_name text, result text, fingerprint text, requeues smallint, group_key text
);
COMMENT ON TYPE messages.ended_message IS 'A message that was just archived, without its body.';

-- The types that the verbs return. A new column breaks the workers of the version before: docs/decisions/0007-upgrade-side-by-side.md
CREATE TYPE messages.leased_message AS (
    id bigint, queue_name text, message jsonb, headers jsonb, reference text, topic text, group_key text,
    priority smallint, attempts smallint, max_attempts smallint, requeues smallint, created_at timestamptz, lock_token uuid,
    lock_expires_at timestamptz
);
COMMENT ON TYPE messages.leased_message IS 'A message as a consumer gets it; no token and no expiry after consume.';
CREATE TYPE messages.leased_dead_message AS (
    id bigint, queue_name text, result text, details text, failure jsonb, message jsonb, headers jsonb, reference text,
    topic text, group_key text, attempts smallint, requeues smallint, created_at timestamptz, archived_at timestamptz,
    handled_by text, lock_token uuid, lock_expires_at timestamptz
);
COMMENT ON TYPE messages.leased_dead_message IS 'A dead message as lease_dead returns it.';
CREATE TYPE messages.open_dispatch AS (
    dispatch_id bigint, queue_name text, dag_id text, run_id text, ids bigint[], opened_at timestamptz, started_at timestamptz,
    seen_at timestamptz
);
COMMENT ON TYPE messages.open_dispatch IS 'Messages and the run that has them.';
CREATE TYPE messages.queue_status AS (
    queue_name text, paused boolean, depth bigint, ready bigint, leased bigint, delayed bigint, oldest_age interval,
    dead bigint, maintenance_age interval, counted_up_to bigint, limited_until timestamptz
);
COMMENT ON TYPE messages.queue_status IS 'A queue in numbers.';
