-- Additive: workers of version 1 run on beside this schema. No column that they read changes, no type that they get.
-- All locks at once, or none: a lease locks the queue before the messages, a publish the messages before the queue.
DO $$
BEGIN
    FOR attempt IN 1..200 LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE messages.message, messages.queue, messages.band, messages.message_archive, messages.dead_message;
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

ALTER TABLE messages.queue
    ADD COLUMN backoff_first interval NOT NULL DEFAULT '1 second' CHECK (backoff_first >= '0'),
    ADD COLUMN backoff_max   interval NOT NULL DEFAULT '5 minutes' CHECK (backoff_max >= '0'),
    ADD COLUMN dedup_window  interval NOT NULL DEFAULT '1 day' CHECK (dedup_window > '0'),
    ADD COLUMN retention     interval CHECK (retention > '0'),
    ADD COLUMN on_dead_head  text     NOT NULL DEFAULT 'block' CHECK (on_dead_head IN ('block', 'skip')),
    ADD COLUMN max_leased    integer  CHECK (max_leased >= 1),
    ADD COLUMN max_depth     bigint   CHECK (max_depth >= 1),
    ADD COLUMN room          regclass,
    ADD COLUMN room_due      regclass,
    ADD CONSTRAINT queue_depth_needs_room CHECK (max_depth IS NULL OR (room IS NOT NULL AND room_due IS NOT NULL));
COMMENT ON COLUMN messages.queue.backoff_first IS 'Pause after the first failed attempt; doubles with each further one, with jitter.';
COMMENT ON COLUMN messages.queue.backoff_max IS 'Longest pause between attempts.';
COMMENT ON COLUMN messages.queue.dedup_window IS 'How long a dedup_key is remembered when the publisher does not say.';
COMMENT ON COLUMN messages.queue.retention IS 'How long the archive keeps finished messages; NULL for ever. Dead ones wait for a decision first.';
COMMENT ON COLUMN messages.queue.on_dead_head IS 'What a dead message does to its group: block until somebody decides about it, or skip to the next.';
COMMENT ON COLUMN messages.queue.max_leased IS 'Largest number of messages that are leased at once; NULL for any.';
COMMENT ON COLUMN messages.queue.max_depth IS 'Largest number of messages that are not finished; NULL for any. Publishers at the same time may pass it by what they bring.';
COMMENT ON COLUMN messages.queue.room IS 'Sequence: how many publishes are allowed before the depth is counted again.';
COMMENT ON COLUMN messages.queue.room_due IS 'Sequence: the moment from which a full queue may be counted again.';
CREATE SEQUENCE messages.room_seq AS integer;
COMMENT ON SEQUENCE messages.room_seq IS 'Numbers the sequences of the queues with a max_depth.';

ALTER TABLE messages.message
    ADD COLUMN due_at    timestamptz,
    ADD COLUMN topic     text,
    ADD COLUMN group_key text;
CREATE INDEX message_order_idx ON messages.message (queue_name, priority DESC, visible_at);
DROP INDEX messages.message_lease_idx;
CREATE INDEX message_reference_idx ON messages.message (reference) WHERE reference IS NOT NULL;
-- PostgreSQL parses each CHECK and each WHEN of a trigger anew in every statement: measured, a quarter of a lease and its
-- archiving one at a time. What only the functions write, they guard. docs/decisions/0005-hot-statements.md
ALTER TABLE messages.message
    DROP CONSTRAINT message_attempts_check,
    DROP CONSTRAINT message_requeues_check,
    DROP CONSTRAINT message_token_needs_a_lease;
ALTER TABLE messages.message_archive
    DROP CONSTRAINT archive_remedy,
    DROP CONSTRAINT archive_success_needs_no_remedy;
DROP TRIGGER IF EXISTS new_message ON messages.message;
DROP TRIGGER IF EXISTS lease_taken_over ON messages.message;
DROP TRIGGER IF EXISTS dead_message ON messages.message_archive;
COMMENT ON COLUMN messages.message.due_at IS 'The visible_at that was asked for, while the message waits behind others of its group.';
COMMENT ON COLUMN messages.message.topic IS 'Words with dots between them; a consumer may lease by pattern.';
COMMENT ON COLUMN messages.message.group_key IS 'Messages of a group are leased one at a time, in the order in which they were published.';

ALTER TABLE messages.message_archive
    ADD COLUMN topic       text,
    ADD COLUMN group_key   text,
    ADD COLUMN fingerprint text,
    ADD COLUMN output      jsonb,
    ADD COLUMN failure     jsonb;
CREATE INDEX message_archive_reference_idx ON messages.message_archive (reference) WHERE reference IS NOT NULL;
CREATE INDEX message_archive_dead_idx ON messages.message_archive (fingerprint, archived_at) WHERE fingerprint IS NOT NULL;
COMMENT ON COLUMN messages.message_archive.topic IS 'As published.';
COMMENT ON COLUMN messages.message_archive.group_key IS 'As published.';
COMMENT ON COLUMN messages.message_archive.fingerprint IS 'The same for dead messages with the same cause: error and message without numbers, ids and quoted texts.';
COMMENT ON COLUMN messages.message_archive.output IS 'What the handler returned.';
COMMENT ON COLUMN messages.message_archive.failure IS 'The last failure: error, message, traceback.';

ALTER TABLE messages.dead_message ADD COLUMN fingerprint text;
CREATE INDEX dead_message_oldest_idx ON messages.dead_message (queue_name, archived_at);
DROP INDEX messages.dead_message_queue_idx;
COMMENT ON COLUMN messages.dead_message.fingerprint IS 'The cause, as in the archive.';

-- Beside the messages, so that those without a group pay nothing for it.
CREATE TABLE messages.group_member (
    id         bigint  PRIMARY KEY,
    place      bigint  GENERATED ALWAYS AS IDENTITY,
    queue_name text    NOT NULL,
    group_key  text    NOT NULL,
    waits      boolean NOT NULL
);
CREATE INDEX group_member_place_idx ON messages.group_member (queue_name, group_key, place);
CREATE UNIQUE INDEX group_member_head_idx ON messages.group_member (queue_name, group_key) WHERE NOT waits;
COMMENT ON TABLE messages.group_member IS 'The order inside the groups: each message that is not finished, and dead heads that block.';
COMMENT ON COLUMN messages.group_member.id IS 'The message.';
COMMENT ON COLUMN messages.group_member.place IS 'Its place in the group; drawn under the lock of the group, so it follows the order of the commits.';
COMMENT ON COLUMN messages.group_member.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.group_member.group_key IS 'The group.';
COMMENT ON COLUMN messages.group_member.waits IS 'False for the head, which alone can be leased; a unique index allows one a group.';

CREATE TABLE messages.group_without_head (
    queue_name text NOT NULL,
    group_key  text NOT NULL,
    PRIMARY KEY (queue_name, group_key)
);
COMMENT ON TABLE messages.group_without_head IS 'Groups whose head was finished while a publisher held their lock: the next sweep promotes.';
COMMENT ON COLUMN messages.group_without_head.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.group_without_head.group_key IS 'The group.';

CREATE TABLE messages.counted_lease (
    id         bigint NOT NULL,
    lock_token uuid   NOT NULL,
    queue_name text   NOT NULL,
    PRIMARY KEY (queue_name, id)
);
COMMENT ON TABLE messages.counted_lease IS 'Leases of the queues with a max_leased; the next lease removes those that ended.';
COMMENT ON COLUMN messages.counted_lease.id IS 'The message.';
COMMENT ON COLUMN messages.counted_lease.lock_token IS 'The lease.';
COMMENT ON COLUMN messages.counted_lease.queue_name IS 'The queue.';

CREATE TABLE messages.dedup (
    queue_name text        NOT NULL,
    dedup_key  text        NOT NULL,
    id         bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue_name, dedup_key)
);
CREATE INDEX dedup_expires_at_idx ON messages.dedup (expires_at);
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
COMMENT ON TABLE messages.inbox IS 'What messages.once() let through.';
COMMENT ON COLUMN messages.inbox.consumer IS 'Who had the effect.';
COMMENT ON COLUMN messages.inbox.message_id IS 'Of which message.';
COMMENT ON COLUMN messages.inbox.handled_at IS 'When; forgotten after 30 days.';

CREATE TABLE messages.topic_binding (
    queue_name text NOT NULL REFERENCES messages.queue ON DELETE CASCADE,
    pattern    text NOT NULL,
    PRIMARY KEY (queue_name, pattern)
);
COMMENT ON TABLE messages.topic_binding IS 'Which topics reach which queues.';
COMMENT ON COLUMN messages.topic_binding.queue_name IS 'The queue that gets a copy.';
COMMENT ON COLUMN messages.topic_binding.pattern IS 'Words with dots between them; * is any word, # is any number of words.';

CREATE TABLE messages.archive_policy (
    only_row     boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    partition_by text        NOT NULL CHECK (partition_by IN ('day', 'month')),
    begins_at    timestamptz NOT NULL,
    retained_at  timestamptz
);
INSERT INTO messages.archive_policy (partition_by, begins_at)
VALUES ('month', (SELECT coalesce(date_trunc('month', min(archived_at), 'UTC'), date_trunc('month', now(), 'UTC'))
                    FROM messages.message_archive));
DO $$ BEGIN
    EXECUTE format('ALTER TABLE messages.message_archive_default ADD CONSTRAINT archived_before_the_archive_begins CHECK (archived_at >= %L)',
                   (SELECT begins_at FROM messages.archive_policy));
END $$;
COMMENT ON TABLE messages.archive_policy IS 'How the archive is kept.';
COMMENT ON COLUMN messages.archive_policy.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.archive_policy.partition_by IS 'The size of the partitions that are made from now on.';
COMMENT ON COLUMN messages.archive_policy.begins_at IS 'Older messages are not kept any more.';
COMMENT ON COLUMN messages.archive_policy.retained_at IS 'When retention was last applied to the end.';

CREATE SEQUENCE messages.quiet_until AS bigint;
COMMENT ON SEQUENCE messages.quiet_until IS 'A mark: until then nobody rings, because the notification queue of the server is half full.';

-- Their arguments changed: CREATE OR REPLACE would make overloads. A call that is under way has looked them up already, so
-- they stay for an hour under another name, and what they call stays too: superseded.sql.
DROP FUNCTION IF EXISTS messages.dead_message();
DO $$
DECLARE
    old regprocedure;
BEGIN
    FOREACH old IN ARRAY ARRAY[
        to_regprocedure('messages.create_queue(text, integer, interval, text, integer, boolean)'),
        to_regprocedure('messages.alter_queue(text, integer, interval, text, integer, boolean)'),
        to_regprocedure('messages.publish(text, jsonb, integer, interval, interval, jsonb, text)'),
        to_regprocedure('messages.publish_batch(text, jsonb, integer, interval, interval, jsonb, text[])'),
        to_regprocedure('messages.lease(text, integer, interval, text)'),
        to_regprocedure('messages.archive(uuid, bigint[], text, text, text, jsonb)'),
        to_regprocedure('messages.release(uuid, bigint[], interval, boolean, text)'),
        to_regprocedure('messages.lease_dead(text, integer, interval, text, text[])'),
        to_regprocedure('messages.requeue_dead(text, integer, text[], integer, interval, text)'),
        to_regprocedure('messages.make_archive_partitions(integer)')]
    LOOP
        IF old IS NOT NULL THEN
            EXECUTE format('ALTER FUNCTION %s RENAME TO %I', old, 'superseded_' || (SELECT proname FROM pg_proc WHERE oid = old));
        END IF;
    END LOOP;
END $$;
