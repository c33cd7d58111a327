CREATE TABLE messages.schedule (
    schedule_name text        PRIMARY KEY CHECK (schedule_name ~ '^[a-z][a-z0-9_]{0,47}$'),
    cron          text        NOT NULL,
    time_zone     text        NOT NULL DEFAULT 'UTC',
    queue_name    text        NOT NULL,
    message       jsonb       NOT NULL,
    priority      smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    headers       jsonb       CHECK (jsonb_typeof(headers) = 'object'),
    paused        boolean     NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_tick     timestamptz,
    checked_until timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error    text
);
COMMENT ON TABLE messages.schedule IS 'Messages that are published again and again, at the ticks of a cron expression.';
COMMENT ON COLUMN messages.schedule.schedule_name IS 'Lower-case letter, then letters, digits and underscores; at most 48 characters.';
COMMENT ON COLUMN messages.schedule.cron IS 'Five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly, @monthly, @yearly.';
COMMENT ON COLUMN messages.schedule.time_zone IS 'The time zone that the expression is read in.';
COMMENT ON COLUMN messages.schedule.queue_name IS 'The queue to publish to. No foreign key: a schedule without its queue says so in last_error.';
COMMENT ON COLUMN messages.schedule.message IS 'The body of each message.';
COMMENT ON COLUMN messages.schedule.priority IS 'Higher is leased first.';
COMMENT ON COLUMN messages.schedule.headers IS 'Metadata beside each body; schedule and tick are added.';
COMMENT ON COLUMN messages.schedule.paused IS 'While true nothing is published, and nothing is made up for later.';
COMMENT ON COLUMN messages.schedule.created_at IS 'When the schedule was created.';
COMMENT ON COLUMN messages.schedule.last_tick IS 'The tick of the last message.';
COMMENT ON COLUMN messages.schedule.checked_until IS 'Ticks up to this moment are settled: published, merged into a later one, or before the schedule began or went on.';
COMMENT ON COLUMN messages.schedule.last_error IS 'Why the last tick could not be published; NULL after one that could.';
