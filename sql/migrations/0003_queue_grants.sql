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
COMMENT ON COLUMN messages.queue_grant.grantee IS 'The role, for itself and its members. Its number stays when the role is dropped, and means nobody then.';
COMMENT ON COLUMN messages.queue_grant.privilege IS 'publish, consume (finish, and decide about dead messages, too) or observe; consume includes observe.';
COMMENT ON COLUMN messages.queue_grant.granted_at IS 'When it was granted.';
COMMENT ON COLUMN messages.queue_grant.granted_by IS 'Who granted it.';
