-- Doors: what plain SQL may write, and the channels on which it listens.
--
-- messages.message and messages.message_archive hold no rows themselves. A statement on one of them fires its trigger, which checks
-- the rows, notifies and sets timers. Functions write the tables behind the doors, messages.message_rows and messages.archive_rows, and
-- fire no trigger. sql/README.md has the protocol for workers in any language.
--
-- notify_for sends NOTIFY new_message with the id of one message: a hint that there is work. While the notification queue of the
-- server is more than half full, no notification is sent (pause_notifications), because publishers fail when it is full.
--
-- Tables: message, message_archive.

CREATE OR REPLACE FUNCTION messages.message_published() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    arrival  record;
    turns_by text;
    moment   timestamptz;
    ids      bigint[];
    keys     text[];
BEGIN
    IF EXISTS (SELECT FROM arrived a WHERE a.id NOT BETWEEN 1 AND coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)) THEN
        RAISE EXCEPTION 'an id was never given out' USING ERRCODE = 'check_violation', HINT = 'Leave the id to its default.';
    END IF;
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at], ARRAY[CASE WHEN a.group_key IS NULL THEN a.visible_at ELSE nullif(a.visible_at, 'infinity') END, a.lock_expires_at, a.expires_at, a.due_at]),
            messages.check_length('locked_by', a.locked_by, 0, 1024), messages.check_options(a.headers, a.reference, a.topic, a.group_key),
            messages.check_body(a.queue_name, a.message, CASE WHEN messages.is_repeated(a.requeued_from, a.message, q.max_body_bytes) IS NOT TRUE THEN q.max_body_bytes END)
       FROM arrived a LEFT JOIN messages.queue q ON q.queue_name = a.queue_name;
    FOR arrival IN
        SELECT a.queue_name, a.priority, min(a.id) AS id, array_agg(a.id) FILTER (WHERE a.group_key IS NOT NULL) AS groups
          FROM arrived a GROUP BY a.queue_name, a.priority ORDER BY a.queue_name, a.priority
    LOOP
        turns_by := messages.prepare_lane(arrival.queue_name, arrival.priority);
        PERFORM messages.notify_for(arrival.queue_name, arrival.id);
        IF turns_by IS NOT NULL THEN
            -- A row that is leased or has a key was restored, and keeps its place.
            SELECT array_agg(a.id ORDER BY a.visible_at, a.id),
                   array_agg((messages.fair_keys(turns_by, 1, a.headers, ARRAY[a.topic], ARRAY[a.group_key]))[1] ORDER BY a.visible_at, a.id)
              INTO ids, keys
              FROM arrived a
             WHERE a.queue_name = arrival.queue_name AND a.priority = arrival.priority
               AND a.lock_expires_at IS NULL AND a.due_at IS NULL AND a.fair_key IS NULL AND a.visible_at < 'infinity';
            moment := clock_timestamp();
            WITH placed AS (
                UPDATE messages.message_rows m
                   SET fair_key = f.key, visible_at = CASE WHEN m.visible_at > moment OR m.group_key IS NOT NULL THEN m.visible_at ELSE f.place END,
                       due_at = CASE WHEN m.visible_at > moment AND m.group_key IS NULL THEN f.place END
                  FROM unnest(ids, keys, messages.fair_places(arrival.queue_name, arrival.priority, keys)) AS f (id, key, place) WHERE m.id = f.id
                RETURNING m.id, m.visible_at, m.due_at)
            INSERT INTO messages.timer (queue_name, at, ids)
            SELECT arrival.queue_name, p.visible_at, array_agg(p.id) FROM placed p WHERE p.due_at IS NOT NULL GROUP BY p.visible_at;
        END IF;
        IF arrival.groups IS NOT NULL THEN
            PERFORM messages.join_groups(arrival.queue_name, arrival.groups);
        END IF;
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT a.queue_name, a.lock_expires_at, a.lock_token, array_agg(a.id) FROM arrived a WHERE a.lock_expires_at IS NOT NULL GROUP BY 1, 2, 3
    UNION ALL
    SELECT a.queue_name, a.expires_at, NULL, array_agg(a.id) FROM arrived a WHERE a.expires_at IS NOT NULL GROUP BY 1, 2;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_published IS
    'Trigger of messages.message. Checks what plain SQL inserted as publish does, sets timers, gives the messages their turns where keys take turns, and sends one NOTIFY new_message per queue and priority, with the first id.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.message_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    moved  record;
BEGIN
    IF EXISTS (SELECT a.id FROM after a EXCEPT SELECT b.id FROM before b) THEN
        RAISE EXCEPTION 'the id of a message is changed' USING ERRCODE = 'check_violation', HINT = 'It is the id forever. Publish another message.';
    END IF;
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at], ARRAY[CASE WHEN a.group_key IS NULL THEN a.visible_at ELSE nullif(a.visible_at, 'infinity') END, a.lock_expires_at, a.expires_at, a.due_at]),
            messages.check_length('locked_by', a.locked_by, 0, 1024)
       FROM after a;
    PERFORM messages.check_options(a.headers, a.reference, a.topic, a.group_key), messages.prepare_lane(a.queue_name, a.priority),
            messages.check_body(a.queue_name, a.message, CASE WHEN (a.queue_name, a.message) IS DISTINCT FROM (b.queue_name, b.message) THEN q.max_body_bytes END)
       FROM after a JOIN before b USING (id) LEFT JOIN messages.queue q ON q.queue_name = a.queue_name
      WHERE (a.headers, a.reference, a.topic, a.group_key, a.queue_name, a.priority, a.message)
            IS DISTINCT FROM (b.headers, b.reference, b.topic, b.group_key, b.queue_name, b.priority, b.message);
    -- Locking a message whose lease has ended makes the token of that lease worthless.
    UPDATE messages.message_rows m SET lock_token = NULL
      FROM after a JOIN before b USING (id)
     WHERE m.id = a.id AND a.lock_token = b.lock_token AND b.lock_expires_at <= moment AND a.lock_expires_at > b.lock_expires_at;
    -- The lease, and its timer, are those of the queue that the message left.
    UPDATE messages.message_rows m SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL
      FROM after a JOIN before b USING (id)
     WHERE m.id = a.id AND m.lock_expires_at IS NOT NULL AND a.queue_name <> b.queue_name;
    -- A message with another group, or with a new time while it waits in its group, joins again; the group that it left may have room.
    FOR moved IN
        SELECT a.queue_name, array_agg(a.id) AS ids FROM after a JOIN before b USING (id)
         WHERE a.group_key IS NOT NULL AND (a.queue_name, a.group_key, a.visible_at, a.place) IS DISTINCT FROM (b.queue_name, b.group_key, b.visible_at, b.place)
         GROUP BY a.queue_name
    LOOP
        PERFORM messages.join_groups(moved.queue_name, moved.ids);
    END LOOP;
    INSERT INTO messages.timer (queue_name, at, ids, group_key)
    SELECT DISTINCT b.queue_name, moment, '{}'::bigint[], b.group_key FROM after a JOIN before b USING (id)
     WHERE b.group_key IS NOT NULL AND (a.queue_name, a.group_key) IS DISTINCT FROM (b.queue_name, b.group_key);
    INSERT INTO messages.timer (queue_name, at, lock_token, ids)
    SELECT m.queue_name, m.lock_expires_at, m.lock_token, array_agg(m.id)
      FROM after a JOIN before b USING (id) JOIN messages.message_rows m ON m.id = a.id
     WHERE m.lock_expires_at IS NOT NULL AND a.lock_expires_at IS DISTINCT FROM b.lock_expires_at
     GROUP BY m.queue_name, m.lock_expires_at, m.lock_token
    UNION ALL
    SELECT a.queue_name, a.expires_at, NULL, array_agg(a.id) FROM after a JOIN before b USING (id)
     WHERE a.expires_at IS NOT NULL AND a.expires_at IS DISTINCT FROM b.expires_at GROUP BY a.queue_name, a.expires_at;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_changed IS
    'Trigger of messages.message. Checks an UPDATE by plain SQL as message_published() checks an INSERT. Where it locked messages or changed when they expire, sets the timer, and makes the token of an old lease worthless.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.message_archived() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held    record;
    entered bigint[];
BEGIN
    PERFORM messages.check_result(a.result) FROM (SELECT DISTINCT result FROM archived) a;
    -- adopt_copy() sets the sequence past the largest id, and needs room for the next.
    IF EXISTS (SELECT FROM archived a WHERE a.id > 9007199254740991) THEN
        RAISE EXCEPTION 'an id was never given out' USING ERRCODE = 'check_violation', HINT = 'Give the id of the message, at most 9007199254740991.';
    END IF;
    -- A row that cannot be requeued, or recorded in the history, would stop every session that comes across it.
    PERFORM messages.check_times(ARRAY[a.created_at, a.leased_at, a.resolved_at], ARRAY[a.archived_at]),
            messages.check_length('queue_name', a.queue_name, 1, 255), messages.check_length('handled_by', a.handled_by, 0, 1024),
            messages.check_length('resolved_by', a.resolved_by, 0, 255), messages.check_length('fingerprint', a.fingerprint, 0, 255),
            messages.check_options(a.headers, a.reference, a.topic, a.group_key), messages.check_publish(a.priority, NULL, NULL, NULL, NULL)
       FROM archived a;
    FOR held IN
        SELECT a.queue_name, min(a.id) AS id,
               array_agg(ROW(a.id, a.archived_at, a.queue_name, a.result, coalesce(a.fingerprint, messages.fingerprint(a.result, a.details, a.failure)),
                             a.requeues, a.group_key)::messages.ended_message) FILTER (WHERE a.result NOT IN ('success', 'cancelled')) AS dead,
               array_agg(DISTINCT a.group_key) FILTER (WHERE a.group_key IS NOT NULL) AS keys
          -- A message of a queue that was dropped is history: nobody can requeue it.
          FROM archived a JOIN messages.queue q ON q.queue_name = a.queue_name GROUP BY a.queue_name
    LOOP
        IF held.dead IS NOT NULL THEN
            PERFORM messages.record_dead(held.dead);
        END IF;
        IF held.keys IS NOT NULL THEN
            entered := messages.next_of_groups(held.queue_name, held.keys, '{}');
            IF entered <> '{}' THEN
                PERFORM messages.notify_for(held.queue_name, held.id);
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.message_archived IS
    'Trigger of messages.message_archive. Checks what plain SQL inserted, and does what follows an archive.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.is_repeated(requeued_from bigint, body jsonb, max_body_bytes integer) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN is_repeated.requeued_from IS NOT NULL AND messages.json_bytes(is_repeated.body) > is_repeated.max_body_bytes
           AND EXISTS (SELECT FROM messages.archive_rows a WHERE a.id = is_repeated.requeued_from AND a.message = is_repeated.body);
END $$;
COMMENT ON FUNCTION messages.is_repeated IS
    'Whether a body that is larger than max_body_bytes is that of the archived message which it repeats. It was published under another limit, and must not keep others from being requeued.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_options(headers jsonb, reference text, topic text, group_key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_headers(headers), messages.check_reference(reference), messages.check_topic(topic),
            messages.check_length('group_key', group_key, 1, 255);
END $$;
COMMENT ON FUNCTION messages.check_options IS 'Raises PQ004 or PQ005 for what no message can keep.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_times(past timestamptz[], coming timestamptz[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A time outside of this range breaks every later calculation that reads it.
    IF '0001-01-01 00:00+00' > ANY (past) OR '1970-01-01 00:00+00' > ANY (coming) OR '9999-12-31 00:00+00' < ANY (past || coming) THEN
        RAISE EXCEPTION 'one of these times is out of range: %', array_to_string(past || coming, ', ')
            USING ERRCODE = 'check_violation', HINT = 'Give times before the year 10000, and those that are to come since 1970. A message without a group_key needs a finite visible_at.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_times IS 'Raises 23514 for times that plain SQL may not write.'
    ' [internal]';

-- The triggers of the two doors are made once and never replaced: replacing a trigger locks out all users of the table.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'message_published') THEN
        CREATE TRIGGER message_published AFTER INSERT ON messages.message
            REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION messages.message_published();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message'::regclass AND tgname = 'message_changed') THEN
        CREATE TRIGGER message_changed AFTER UPDATE ON messages.message
            REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION messages.message_changed();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'messages.message_archive'::regclass AND tgname = 'message_archived') THEN
        CREATE TRIGGER message_archived AFTER INSERT ON messages.message_archive
            REFERENCING NEW TABLE AS archived FOR EACH STATEMENT EXECUTE FUNCTION messages.message_archived();
    END IF;
END $$;

CREATE OR REPLACE FUNCTION messages.notify_for(queue_name text, id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy record;
BEGIN
    SELECT q.notify, q.lock_key INTO policy FROM messages.queue q WHERE q.queue_name = notify_for.queue_name COLLATE "default";
    IF policy.notify IS NULL OR policy.notify = 'off' OR messages.notifications_are_paused() THEN
        RETURN;
    END IF;
    IF policy.notify = 'gated' THEN        -- unless another session notifies for the queue
        policy.notify := CASE WHEN pg_try_advisory_xact_lock(policy.lock_key, -1) THEN 'always' ELSE 'off' END;
    END IF;
    IF policy.notify = 'always' THEN
        PERFORM pg_notify('new_message', notify_for.id::text);
    END IF;
END $$;
COMMENT ON FUNCTION messages.notify_for IS
    'Sends NOTIFY new_message for a message that was published or has come back, if the policy notify of the queue allows it.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.notify_waiting(queue_name text, max_notifications integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    notified   integer := 0;
    level  record;
BEGIN
    FOR level IN
        SELECT p.priority, messages.stored_time(p.mark, moment) AS lowest
          FROM messages.lane p WHERE p.queue_name = notify_waiting.queue_name COLLATE "default" AND p.used ORDER BY p.priority DESC
    LOOP
        notified := notified + (
            SELECT count(pg_notify('new_message', waiting.id::text)) FROM (
                SELECT m.id FROM messages.message_rows m
                 WHERE m.queue_name = notify_waiting.queue_name COLLATE "default" AND m.priority = level.priority
                   AND m.visible_at >= level.lowest AND m.visible_at <= moment AND m.lock_expires_at IS NULL
                 ORDER BY m.visible_at LIMIT greatest(max_notifications - notified, 0)) waiting);
    END LOOP;
    RETURN notified;
END $$;
COMMENT ON FUNCTION messages.notify_waiting IS
    'Sends new_message again for the oldest ready messages of a queue and returns for how many.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.notifications_are_paused() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN messages.stored_time('messages.notifications_paused_until', clock_timestamp() + interval '1 minute') > clock_timestamp();
END $$;
COMMENT ON FUNCTION messages.notifications_are_paused IS
    'True while the notification queue of the server is more than half full: then no notification is sent, and consumers poll. A full queue would make publishers fail at their commit.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.pause_notifications() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- This also ends a pause that is too long because the clock went back.
    SELECT messages.store_time('messages.notifications_paused_until', CASE WHEN used > 0.5 THEN clock_timestamp() + interval '1 minute' ELSE 'epoch' END)
      FROM pg_notification_queue_usage() AS used
     WHERE used > 0.5 OR messages.stored_time('messages.notifications_paused_until') > clock_timestamp() + interval '1 minute'
$$;
COMMENT ON FUNCTION messages.pause_notifications IS 'Stops notifications for a minute if the notification queue of the server is more than half full. Scans and maintenance call it.'
    ' [internal]';
