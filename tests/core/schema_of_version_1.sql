-- The schema as version 1 of it was installed, for the test that upgrades it under load: pg_dump --no-owner --inserts
-- without the monthly partitions.
SET check_function_bodies = false;
CREATE SCHEMA messages;
COMMENT ON SCHEMA messages IS 'Message queue: publish, lease, archive. See sql/README.md of airflow-provider-pgqueue.';
CREATE TYPE messages.leased_dead_message AS (
	id bigint,
	queue_name text,
	result text,
	details text,
	message jsonb,
	headers jsonb,
	reference text,
	attempts smallint,
	requeues smallint,
	created_at timestamp with time zone,
	archived_at timestamp with time zone,
	handled_by text,
	lock_token uuid,
	lock_expires_at timestamp with time zone
);
COMMENT ON TYPE messages.leased_dead_message IS 'A dead message as who decides about it gets it.';
CREATE TYPE messages.leased_message AS (
	id bigint,
	queue_name text,
	message jsonb,
	headers jsonb,
	reference text,
	priority smallint,
	attempts smallint,
	max_attempts smallint,
	requeues smallint,
	created_at timestamp with time zone,
	lock_token uuid,
	lock_expires_at timestamp with time zone
);
COMMENT ON TYPE messages.leased_message IS 'A message as a consumer gets it; no token and no expiry after consume.';
CREATE TYPE messages.queue_status AS (
	queue_name text,
	paused boolean,
	depth bigint,
	ready bigint,
	leased bigint,
	delayed bigint,
	oldest_age interval,
	dead bigint,
	upkeep_age interval
);
COMMENT ON TYPE messages.queue_status IS 'A queue in numbers.';
CREATE FUNCTION messages.add_band(queue_name text, priority smallint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    number   integer := nextval('messages.band_seq');
    low      text := format('messages.low_water_%s', number);
    due      text := format('messages.sweep_due_%s', number);
BEGIN
    EXECUTE format('CREATE SEQUENCE %s AS bigint', low);
    EXECUTE format('CREATE SEQUENCE %s AS bigint', due);
    INSERT INTO messages.band (queue_name, priority, low_water, sweep_due)
    VALUES (add_band.queue_name, add_band.priority, low::regclass, due::regclass)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN                      -- another session was first
        EXECUTE format('DROP SEQUENCE %s, %s', low, due);
    END IF;
END $$;
COMMENT ON FUNCTION messages.add_band(queue_name text, priority smallint) IS 'Internal. Makes the marks of a queue and priority that is seen for the first time.';
CREATE FUNCTION messages.alter_queue(queue_name text, max_attempts integer DEFAULT NULL::integer, lease_for interval DEFAULT NULL::interval, notify text DEFAULT NULL::text, max_body_bytes integer DEFAULT NULL::integer, paused boolean DEFAULT NULL::boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_policy(alter_queue.max_attempts, alter_queue.lease_for, alter_queue.notify,
                                  alter_queue.max_body_bytes);
    UPDATE messages.queue q
       SET max_attempts   = coalesce(alter_queue.max_attempts, q.max_attempts),
           lease_for      = coalesce(alter_queue.lease_for, q.lease_for),
           notify         = coalesce(alter_queue.notify, q.notify),
           max_body_bytes = coalesce(alter_queue.max_body_bytes, q.max_body_bytes),
           paused         = coalesce(alter_queue.paused, q.paused)
     WHERE q.queue_name = alter_queue.queue_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(alter_queue.queue_name);
    END IF;
END $$;
COMMENT ON FUNCTION messages.alter_queue(queue_name text, max_attempts integer, lease_for interval, notify text, max_body_bytes integer, paused boolean) IS 'Changes the policy of a queue for waiting messages too; NULL keeps a value. PQ001: unknown queue; PQ004: bad policy.';
CREATE FUNCTION messages.archive(lock_token uuid, ids bigint[], result text DEFAULT 'success'::text, details text DEFAULT NULL::text, handled_by text DEFAULT NULL::text, outcomes jsonb DEFAULT NULL::jsonb) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    IF archive.result IS NULL OR archive.result <> ALL (ARRAY['success', 'failed', 'rejected', 'lock_expired', 'expired']) THEN
        RAISE EXCEPTION 'result is %', coalesce(quote_literal(left(archive.result, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give success, failed, rejected, lock_expired or expired.';
    END IF;
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.message m
         WHERE m.id = ANY (archive.ids) AND m.lock_token = archive.lock_token AND m.lock_expires_at > clock_timestamp()
        RETURNING m.*)
    INSERT INTO messages.message_archive AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                               queue_name, result, handled_by, details, reference, headers, message)
    SELECT id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name,
           coalesce(archive.outcomes -> id::text ->> 'result', archive.result),
           coalesce(archive.handled_by, locked_by),
           left(coalesce(archive.outcomes -> id::text ->> 'details', archive.details), 4000),
           reference, headers, message
      FROM mine
    RETURNING a.id;
END $$;
COMMENT ON FUNCTION messages.archive(lock_token uuid, ids bigint[], result text, details text, handled_by text, outcomes jsonb) IS 'Finishes leased messages and returns the ids; an id that is missing was lost. outcomes {"id": {"result", "details"}} overrides per message. PQ004: bad result.';
CREATE FUNCTION messages.check_dead_lease(queue_name text, max_messages integer, results text[]) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF check_dead_lease.queue_name IS NOT NULL
       AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = check_dead_lease.queue_name) THEN
        PERFORM messages.raise_unknown_queue(check_dead_lease.queue_name);
    END IF;
    IF max_messages IS NULL OR max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', coalesce(max_messages::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 10000.';
    END IF;
    IF NOT results <@ ARRAY['failed', 'rejected', 'lock_expired', 'expired'] THEN
        RAISE EXCEPTION 'results are %', left(results::text, 200)
            USING ERRCODE = 'PQ004', HINT = 'Give some of failed, rejected, lock_expired, expired.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_dead_lease(queue_name text, max_messages integer, results text[]) IS 'Internal. Raises PQ001 or PQ004 for an argument of lease_dead that cannot be.';
CREATE FUNCTION messages.check_duration(name text, value interval, at_least interval, at_most interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF value < at_least OR value > at_most THEN
        RAISE EXCEPTION '% is %', name, value
            USING ERRCODE = 'PQ004', HINT = format('Give a duration from %s to %s.', at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_duration(name text, value interval, at_least interval, at_most interval) IS 'Internal. Raises PQ004 for a duration out of range; NULL means not given.';
CREATE FUNCTION messages.check_policy(max_attempts integer, lease_for interval, notify text, max_body_bytes integer) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts is %', max_attempts USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 1000.';
    END IF;
    PERFORM messages.check_duration('lease_for', lease_for, '1 millisecond', '12 hours');
    IF notify NOT IN ('always', 'gated', 'off') THEN
        RAISE EXCEPTION 'notify is %', quote_literal(left(notify, 100))
            USING ERRCODE = 'PQ004', HINT = 'Give always, gated or off.';
    END IF;
    IF max_body_bytes NOT BETWEEN 1 AND 268435455 THEN
        RAISE EXCEPTION 'max_body_bytes is %', max_body_bytes
            USING ERRCODE = 'PQ004', HINT = 'Give a number of bytes from 1 to 268435455.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_policy(max_attempts integer, lease_for interval, notify text, max_body_bytes integer) IS 'Internal. Raises PQ004 for a policy value out of range; NULL means not given.';
CREATE FUNCTION messages.check_publish(priority integer, delay interval, expires_in interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'priority is %', coalesce(priority::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a whole number from -100 to 100; higher is leased first.';
    END IF;
    IF delay <> '0' THEN
        PERFORM messages.check_duration('delay', delay, '0', '366 days');
    END IF;
    IF expires_in IS NOT NULL THEN
        PERFORM messages.check_duration('expires_in', expires_in, '1 millisecond', '3660 days');
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_publish(priority integer, delay interval, expires_in interval) IS 'Internal. Raises PQ004 for an argument of publish that is out of range.';
CREATE FUNCTION messages.consumable_queue(queue_name text, max_messages integer, OUT max_attempts smallint, OUT lease_for interval) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    queue messages.queue;
BEGIN
    SELECT * INTO queue FROM messages.queue q WHERE q.queue_name = consumable_queue.queue_name;
    IF NOT FOUND THEN
        PERFORM messages.raise_unknown_queue(consumable_queue.queue_name);
    END IF;
    IF queue.paused THEN
        RAISE EXCEPTION 'queue % is paused', quote_literal(queue.queue_name)
            USING ERRCODE = 'PQ002', HINT = format('Resume it: SELECT messages.alter_queue(%L, paused => false)', queue.queue_name);
    END IF;
    IF max_messages IS NULL OR max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', coalesce(max_messages::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give a number from 1 to 10000.';
    END IF;
    consumable_queue.max_attempts := queue.max_attempts;
    consumable_queue.lease_for := queue.lease_for;
END $$;
COMMENT ON FUNCTION messages.consumable_queue(queue_name text, max_messages integer, OUT max_attempts smallint, OUT lease_for interval) IS 'Internal. The policy that a consumer needs; raises PQ001, PQ002 or PQ004 if nothing can be leased like this.';
CREATE FUNCTION messages.consume(queue_name text, max_messages integer DEFAULT 1, handled_by text DEFAULT NULL::text) RETURNS SETOF messages.leased_message
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    policy record;
    places tid[];
BEGIN
    SELECT * INTO policy FROM messages.consumable_queue(consume.queue_name, consume.max_messages);
    places := messages.take(consume.queue_name, consume.max_messages, policy.max_attempts);
    IF places = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM messages.message m WHERE m.ctid = ANY (places) RETURNING m.*),
    archived AS (
        INSERT INTO messages.message_archive (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                              queue_name, result, handled_by, reference, headers, message)
        SELECT g.id, g.created_at, clock_timestamp(), g.requeued_from, g.priority, g.attempts + 1, g.requeues,
               g.queue_name, 'success', coalesce(consume.handled_by, session_user), g.reference, g.headers, g.message
          FROM gone g)
    SELECT g.id, g.queue_name, g.message, g.headers, g.reference, g.priority, (g.attempts + 1)::smallint,
           policy.max_attempts, g.requeues, g.created_at, NULL::uuid, NULL::timestamptz
      FROM gone g ORDER BY g.priority DESC, g.visible_at, g.id;
END $$;
COMMENT ON FUNCTION messages.consume(queue_name text, max_messages integer, handled_by text) IS 'Takes messages out and archives them as success in the caller''s transaction: effects in the same transaction happen exactly once; a rollback gives the messages back. Errors as lease.';
CREATE FUNCTION messages.create_queue(queue_name text, max_attempts integer DEFAULT 5, lease_for interval DEFAULT '00:05:00'::interval, notify text DEFAULT 'always'::text, max_body_bytes integer DEFAULT 1048576, paused boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
BEGIN
    IF create_queue.queue_name IS NULL OR create_queue.queue_name !~ '^[a-z][a-z0-9_]{0,47}$' THEN
        RAISE EXCEPTION 'queue name % is not valid', coalesce(quote_literal(left(create_queue.queue_name, 100)), 'NULL')
            USING ERRCODE = 'PQ003', HINT = 'Use a lower-case letter, then letters, digits and underscores; at most 48 characters.';
    END IF;
    PERFORM messages.check_policy(create_queue.max_attempts, create_queue.lease_for, create_queue.notify,
                                  create_queue.max_body_bytes);
    INSERT INTO messages.queue (queue_name, max_attempts, lease_for, notify, max_body_bytes, paused)
    VALUES (create_queue.queue_name, create_queue.max_attempts, create_queue.lease_for, create_queue.notify,
            create_queue.max_body_bytes, create_queue.paused)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM messages.add_band(create_queue.queue_name, 0::smallint);
    RETURN true;
END $_$;
COMMENT ON FUNCTION messages.create_queue(queue_name text, max_attempts integer, lease_for interval, notify text, max_body_bytes integer, paused boolean) IS 'Creates a queue and returns true; returns false and changes nothing if it exists. PQ003: bad name; PQ004: bad policy.';
CREATE FUNCTION messages.dead_message() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RAISE WARNING 'dead message: archive id %, queue %, result %', NEW.id, NEW.queue_name, NEW.result;
    INSERT INTO messages.dead_message (id, archived_at, queue_name, result)
    VALUES (NEW.id, NEW.archived_at, NEW.queue_name, NEW.result);
    -- The setting lives as long as the transaction, and so does the NOTIFY: one ring per transaction and queue.
    IF current_setting('messages.dead_message_rung', true) IS DISTINCT FROM NEW.queue_name
       AND pg_notification_queue_usage() <= 0.5 THEN
        PERFORM pg_notify('dead_message', NEW.id::text);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.dead_message() IS 'Internal, trigger. Puts a dead message on the work list, warns in the server log and rings dead_message with the archive id.';
CREATE FUNCTION messages.dead_queues(queue_names text[] DEFAULT NULL::text[]) RETURNS TABLE(queue_name text, result text, waiting bigint, newest_id bigint, oldest_age interval)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT d.queue_name, d.result, count(*), max(d.id), clock_timestamp() - min(d.archived_at)
      FROM messages.dead_message d
     WHERE (queue_names IS NULL OR d.queue_name = ANY (queue_names))
       AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= clock_timestamp())
     GROUP BY d.queue_name, d.result
$$;
COMMENT ON FUNCTION messages.dead_queues(queue_names text[]) IS 'The queues that have dead messages which nobody decided about and nobody holds, by result.';
CREATE FUNCTION messages.dismiss(lock_token uuid, ids bigint[], reason text, remedied_by text DEFAULT NULL::text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF coalesce(btrim(dismiss.reason), '') = '' THEN
        RAISE EXCEPTION 'reason is empty' USING ERRCODE = 'PQ004', HINT = 'Say why nothing more will be done.';
    END IF;
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.dead_message d
         WHERE d.id = ANY (dismiss.ids) AND d.lock_token = dismiss.lock_token AND d.lock_expires_at > clock_timestamp()
        RETURNING d.id, d.archived_at, d.locked_by)
    UPDATE messages.message_archive a
       SET remedy = 'dismissed', remedied_at = clock_timestamp(), dismissed_for = left(dismiss.reason, 4000),
           remedied_by = coalesce(dismiss.remedied_by, mine.locked_by)
      FROM mine WHERE a.id = mine.id AND a.archived_at = mine.archived_at
    RETURNING a.id;
END $$;
COMMENT ON FUNCTION messages.dismiss(lock_token uuid, ids bigint[], reason text, remedied_by text) IS 'Decides that nothing more is done about leased dead messages, notes why in the archive, returns the ids; an id that is missing was lost. PQ004: no reason.';
CREATE FUNCTION messages.extend(lock_token uuid, ids bigint[], lease_for interval) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('lease_for', extend.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    UPDATE messages.message m SET lock_expires_at = clock_timestamp() + extend.lease_for
     WHERE m.id = ANY (extend.ids) AND m.lock_token = extend.lock_token AND m.lock_expires_at > clock_timestamp()
    RETURNING m.id;
END $$;
COMMENT ON FUNCTION messages.extend(lock_token uuid, ids bigint[], lease_for interval) IS 'Makes leases last lease_for from now and returns the ids; an id that is missing was lost. PQ004: bad duration.';
CREATE FUNCTION messages.install_cron() RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    home text := current_setting('cron.database_name', true);
BEGIN
    IF home IS NULL THEN
        RAISE EXCEPTION 'pg_cron is not loaded' USING ERRCODE = 'PQ006',
            HINT = format('Set shared_preload_libraries = ''pg_cron'' and cron.database_name = %L in postgresql.conf and restart, or let Airflow do the upkeep.', current_database());
    ELSIF home <> current_database() THEN
        RAISE EXCEPTION 'pg_cron lives in database %, not in %', quote_literal(home), quote_literal(current_database())
            USING ERRCODE = 'PQ006',
            HINT = format('Run there: SELECT cron.schedule_in_database(''messages:upkeep'', ''* * * * *'', ''SELECT messages.upkeep()'', %L); or let Airflow do the upkeep.', current_database());
    END IF;
    IF to_regclass('cron.job') IS NULL THEN
        EXECUTE 'CREATE EXTENSION IF NOT EXISTS pg_cron';
    END IF;
    -- A job keeps the host and port of the day it was made, so make it anew.
    PERFORM messages.uninstall_cron();
    EXECUTE $job$ SELECT cron.schedule('messages:upkeep', '* * * * *', 'SELECT messages.upkeep()') $job$;
    RETURN 'messages:upkeep';
END $_$;
COMMENT ON FUNCTION messages.install_cron() IS 'Schedules messages.upkeep() every minute through pg_cron, one job for all queues, as the caller; returns its name. PQ006: no pg_cron here, with the cure.';
CREATE FUNCTION messages.lease(queue_name text, max_messages integer DEFAULT 1, lease_for interval DEFAULT NULL::interval, locked_by text DEFAULT NULL::text) RETURNS SETOF messages.leased_message
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    policy record;
    places tid[];
    token  uuid;
    moment timestamptz;
BEGIN
    SELECT * INTO policy FROM messages.consumable_queue(lease.queue_name, lease.max_messages);
    IF lease.lease_for IS NOT NULL THEN
        PERFORM messages.check_duration('lease_for', lease.lease_for, '1 millisecond', '12 hours');
    END IF;
    places := messages.take(lease.queue_name, lease.max_messages, policy.max_attempts);
    IF places = '{}' THEN
        RETURN;
    END IF;
    token := gen_random_uuid();
    moment := clock_timestamp();
    RETURN QUERY
    WITH leased AS (
        UPDATE messages.message m
           SET lock_expires_at = moment + coalesce(lease.lease_for, policy.lease_for), leased_at = moment,
               lock_token = token, locked_by = coalesce(lease.locked_by, session_user), attempts = m.attempts + 1
         WHERE m.ctid = ANY (places)
        RETURNING m.*)
    SELECT l.id, l.queue_name, l.message, l.headers, l.reference, l.priority, l.attempts, policy.max_attempts, l.requeues,
           l.created_at, l.lock_token, l.lock_expires_at
      FROM leased l ORDER BY l.priority DESC, l.visible_at, l.id;
END $$;
COMMENT ON FUNCTION messages.lease(queue_name text, max_messages integer, lease_for interval, locked_by text) IS 'Takes up to max_messages ready messages under one fresh lock_token, highest priority and oldest first. Counts an attempt. PQ001: unknown queue; PQ002: paused; PQ004: bad argument.';
CREATE FUNCTION messages.lease_dead(queue_name text DEFAULT NULL::text, max_messages integer DEFAULT 100, lease_for interval DEFAULT '00:05:00'::interval, locked_by text DEFAULT NULL::text, results text[] DEFAULT NULL::text[]) RETURNS SETOF messages.leased_dead_message
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    token  uuid := gen_random_uuid();
BEGIN
    PERFORM messages.check_dead_lease(lease_dead.queue_name, lease_dead.max_messages, lease_dead.results);
    PERFORM messages.check_duration('lease_for', lease_dead.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    WITH picked AS MATERIALIZED (
        SELECT d.id FROM messages.dead_message d
         WHERE (lease_dead.queue_name IS NULL OR d.queue_name = lease_dead.queue_name)
           AND (lease_dead.results IS NULL OR d.result = ANY (lease_dead.results))
           AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= moment)
         ORDER BY d.id LIMIT lease_dead.max_messages FOR UPDATE SKIP LOCKED),
    leased AS (
        UPDATE messages.dead_message d
           SET lock_expires_at = moment + lease_dead.lease_for, lock_token = token,
               locked_by = coalesce(lease_dead.locked_by, session_user)
          FROM picked p WHERE d.id = p.id
        RETURNING d.id, d.archived_at, d.lock_token, d.lock_expires_at)
    SELECT a.id, a.queue_name, a.result, a.details, a.message, a.headers, a.reference, a.attempts, a.requeues,
           a.created_at, a.archived_at, a.handled_by, l.lock_token, l.lock_expires_at
      FROM leased l JOIN messages.message_archive a ON a.id = l.id AND a.archived_at = l.archived_at
     ORDER BY a.id;
END $$;
COMMENT ON FUNCTION messages.lease_dead(queue_name text, max_messages integer, lease_for interval, locked_by text, results text[]) IS 'Takes dead messages about which nothing was decided yet under one fresh lock_token, oldest first; NULL takes any queue or result. PQ001, PQ004.';
CREATE FUNCTION messages.lease_taken_over() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    NEW.lock_token := NULL;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION messages.lease_taken_over() IS 'Internal, trigger. When plain SQL locks a message whose lease expired, the old token dies with the old lease.';
CREATE FUNCTION messages.make_archive_partitions(months_ahead integer DEFAULT 3) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
DECLARE
    first date := date_trunc('month', clock_timestamp())::date;
    month date;
    made  integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('messages.make_archive_partitions', 0));
    FOR ahead IN 0..months_ahead LOOP
        month := (first + make_interval(months => ahead))::date;
        -- A month that already has rows in the default partition stays there.
        CONTINUE WHEN to_regclass(format('messages.message_archive_%s', to_char(month, 'YYYYMM'))) IS NOT NULL
            OR EXISTS (SELECT FROM messages.message_archive_default
                        WHERE archived_at >= month AND archived_at < month + interval '1 month');
        EXECUTE format('CREATE TABLE messages.message_archive_%s PARTITION OF messages.message_archive FOR VALUES FROM (%L) TO (%L)',
                       to_char(month, 'YYYYMM'), month::timestamptz, (month + interval '1 month')::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.make_archive_partitions(months_ahead integer) IS 'Makes the monthly archive partitions (UTC) of this and the coming months and returns how many were missing.';
CREATE FUNCTION messages.mark(sequence regclass) RETURNS timestamp with time zone
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT coalesce('epoch'::timestamptz + pg_sequence_last_value(sequence) * interval '1 microsecond', '-infinity')
$$;
COMMENT ON FUNCTION messages.mark(sequence regclass) IS 'Internal. Reads a mark of a band; -infinity before it was ever set.';
CREATE FUNCTION messages.new_message() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
    arrival record;
BEGIN
    FOR arrival IN
        SELECT a.queue_name, a.priority, a.first_id, a.largest, q.max_body_bytes, q.notify,
               q.queue_name IS NULL AS unknown, b.priority IS NULL AS new_band
          FROM (SELECT queue_name, priority, min(id) AS first_id, max(pg_column_size(message)) AS largest
                  FROM arrived GROUP BY queue_name, priority) a
          LEFT JOIN messages.queue q ON q.queue_name = a.queue_name
          LEFT JOIN messages.band b ON b.queue_name = a.queue_name AND b.priority = a.priority
    LOOP
        IF arrival.unknown THEN
            PERFORM messages.raise_unknown_queue(arrival.queue_name);
        END IF;
        IF arrival.largest > arrival.max_body_bytes THEN
            RAISE EXCEPTION 'a body of % bytes is too large for queue %: it takes %',
                arrival.largest, quote_literal(arrival.queue_name), arrival.max_body_bytes
                USING ERRCODE = 'PQ005',
                      HINT = 'Keep large data elsewhere and publish where it is, or raise max_body_bytes with messages.alter_queue.';
        END IF;
        IF arrival.new_band THEN
            PERFORM messages.add_band(arrival.queue_name, arrival.priority);
        END IF;
        -- A full notification queue would make publishers fail at commit, so stop ringing long before.
        CONTINUE WHEN arrival.notify = 'off' OR pg_notification_queue_usage() > 0.5;
        CONTINUE WHEN arrival.notify = 'gated'
            AND NOT pg_try_advisory_xact_lock(hashtextextended('messages.new_message.' || arrival.queue_name, 0));
        PERFORM pg_notify('new_message', arrival.first_id::text);
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages.new_message() IS 'Internal, trigger. Checks what a statement inserted and rings new_message once per queue and priority with the first id.';
CREATE FUNCTION messages.publish(queue_name text, message jsonb, priority integer DEFAULT 0, delay interval DEFAULT '00:00:00'::interval, expires_in interval DEFAULT NULL::interval, headers jsonb DEFAULT NULL::jsonb, reference text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    new_id bigint;
BEGIN
    PERFORM messages.check_publish(publish.priority, publish.delay, publish.expires_in);
    INSERT INTO messages.message (queue_name, message, priority, created_at, visible_at, expires_at, headers, reference)
    VALUES (publish.queue_name, publish.message, publish.priority, moment, moment + coalesce(publish.delay, '0'),
            moment + publish.expires_in, publish.headers, publish.reference)
    RETURNING id INTO new_id;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION messages.publish(queue_name text, message jsonb, priority integer, delay interval, expires_in interval, headers jsonb, reference text) IS 'Publishes one message in the caller''s transaction and returns its id. PQ001: unknown queue; PQ004: bad argument; PQ005: body too large.';
CREATE FUNCTION messages.publish_batch(queue_name text, messages jsonb, priority integer DEFAULT 0, delay interval DEFAULT '00:00:00'::interval, expires_in interval DEFAULT NULL::interval, headers jsonb DEFAULT NULL::jsonb, "references" text[] DEFAULT NULL::text[]) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_publish(publish_batch.priority, publish_batch.delay, publish_batch.expires_in);
    IF publish_batch.messages IS NULL OR jsonb_typeof(publish_batch.messages) <> 'array'
       OR jsonb_array_length(publish_batch.messages) = 0 THEN
        RAISE EXCEPTION 'the batch is empty or not a JSON array'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array with at least one body.';
    END IF;
    IF cardinality(publish_batch."references") <> jsonb_array_length(publish_batch.messages) THEN
        RAISE EXCEPTION 'the batch has % bodies and % references',
            jsonb_array_length(publish_batch.messages), cardinality(publish_batch."references")
            USING ERRCODE = 'PQ004', HINT = 'Give one reference for each body, or none at all.';
    END IF;
    RETURN QUERY
    INSERT INTO messages.message AS m (queue_name, message, priority, visible_at, expires_at, headers, reference)
    SELECT publish_batch.queue_name, body.value, publish_batch.priority,
           clock_timestamp() + coalesce(publish_batch.delay, '0'), clock_timestamp() + publish_batch.expires_in,
           publish_batch.headers, publish_batch."references"[body.ordinality]
      FROM jsonb_array_elements(publish_batch.messages) WITH ORDINALITY AS body
    RETURNING m.id;
END $$;
COMMENT ON FUNCTION messages.publish_batch(queue_name text, messages jsonb, priority integer, delay interval, expires_in interval, headers jsonb, "references" text[]) IS 'Publishes each element of a JSON array in one statement and returns the ids in order. All or none. Errors as publish.';
CREATE FUNCTION messages.purge_cron_history(older_than interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    purged bigint;
BEGIN
    -- pg_cron keeps a row for each run for ever; row security limits this to the jobs of the owner.
    EXECUTE $purge$
        DELETE FROM cron.job_run_details d USING cron.job j
         WHERE j.jobid = d.jobid AND j.jobname LIKE 'messages:%' AND d.end_time < clock_timestamp() - $1
    $purge$ USING older_than;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $_$;
COMMENT ON FUNCTION messages.purge_cron_history(older_than interval) IS 'Internal. Deletes the run history of our own pg_cron jobs and returns how many rows.';
CREATE FUNCTION messages.raise_unknown_queue(queue_name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION 'queue % does not exist', coalesce(quote_literal(left(queue_name, 100)), 'NULL')
        USING ERRCODE = 'PQ001',
              HINT = format('Create it: SELECT messages.create_queue(%s)', coalesce(quote_literal(left(queue_name, 100)), '''name'''));
END $$;
COMMENT ON FUNCTION messages.raise_unknown_queue(queue_name text) IS 'Internal. Raises PQ001 with the queue and the cure.';
CREATE FUNCTION messages.ready_queues(queue_names text[] DEFAULT NULL::text[], count_up_to integer DEFAULT 1000) RETURNS TABLE(queue_name text, ready bigint, oldest_age interval, next_in interval)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
    -- Below the low-water mark only what a sweep would find, and only when a sweep is due: consumers that work do that.
    SELECT q.queue_name, sum(found.ready)::bigint, moment - min(found.oldest), min(coming.visible_at) - moment
      FROM (SELECT clock_timestamp() AS moment) clock
     CROSS JOIN messages.queue q
      JOIN messages.band b ON b.queue_name = q.queue_name
     CROSS JOIN LATERAL (
        SELECT count(*) AS ready, min(oldest.visible_at) AS oldest FROM (
            SELECT m.visible_at FROM messages.message m
             WHERE m.queue_name = b.queue_name AND m.priority = b.priority AND m.visible_at <= moment
               AND m.visible_at >= CASE WHEN messages.mark(b.sweep_due) <= moment THEN '-infinity' ELSE messages.mark(b.low_water) END
               AND (m.lock_expires_at IS NULL OR m.lock_expires_at <= moment)
               AND (m.expires_at IS NULL OR m.expires_at > moment)
             ORDER BY m.visible_at, m.id LIMIT count_up_to) oldest) found
      LEFT JOIN LATERAL (
        SELECT m.visible_at FROM messages.message m
         WHERE m.queue_name = b.queue_name AND m.priority = b.priority AND m.visible_at > moment
         ORDER BY m.visible_at, m.id LIMIT 1) coming ON true
     WHERE (queue_names IS NULL OR q.queue_name = ANY (queue_names)) AND NOT q.paused
     GROUP BY q.queue_name, moment
    HAVING sum(found.ready) > 0 OR min(coming.visible_at) IS NOT NULL
$$;
COMMENT ON FUNCTION messages.ready_queues(queue_names text[], count_up_to integer) IS 'The queues, not paused, that have a message to lease now (ready counts up to count_up_to a priority) or later (next_in). One question for any number of waiting consumers.';
CREATE FUNCTION messages.release(lock_token uuid, ids bigint[], delay interval DEFAULT '00:00:00'::interval, count_attempt boolean DEFAULT true, details text DEFAULT NULL::text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    released record;
BEGIN
    PERFORM messages.check_duration('delay', release.delay, '0', '366 days');
    -- Back where it was in the order, unless a delay moves it; whoever looks next has to start low enough to see it.
    FOR released IN
        WITH freed AS (
            UPDATE messages.message m
               SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL,
                   visible_at = CASE WHEN release.delay > '0' THEN moment + release.delay ELSE m.visible_at END,
                   attempts = m.attempts - (NOT release.count_attempt)::integer
              FROM messages.queue q
             WHERE m.id = ANY (release.ids) AND m.lock_token = release.lock_token AND m.lock_expires_at > clock_timestamp()
               AND q.queue_name = m.queue_name AND (NOT release.count_attempt OR m.attempts < q.max_attempts)
            RETURNING m.id, m.queue_name, m.priority, m.visible_at)
        SELECT f.queue_name, f.priority, array_agg(f.id) AS ids, min(f.visible_at) AS lowest, b.low_water, q.notify
          FROM freed f JOIN messages.band b USING (queue_name, priority) JOIN messages.queue q USING (queue_name)
         GROUP BY f.queue_name, f.priority, b.low_water, q.notify
    LOOP
        IF released.lowest < messages.mark(released.low_water) THEN
            PERFORM messages.set_mark(released.low_water, released.lowest);
        END IF;
        IF released.lowest <= moment AND released.notify <> 'off' THEN
            PERFORM pg_notify('new_message', released.ids[1]::text);
        END IF;
        RETURN QUERY SELECT unnest(released.ids);
    END LOOP;
    -- What is left under this token had its last attempt.
    RETURN QUERY SELECT messages.archive(release.lock_token, release.ids, 'failed',
                                         coalesce(release.details, 'released after its last attempt'));
END $$;
COMMENT ON FUNCTION messages.release(lock_token uuid, ids bigint[], delay interval, count_attempt boolean, details text) IS 'Gives leased messages back, now or after a delay, and returns the ids; an id that is missing was lost. A counted last attempt is archived as failed with the details. PQ004: bad delay.';
CREATE FUNCTION messages.requeue(lock_token uuid, ids bigint[], messages jsonb DEFAULT NULL::jsonb, delay interval DEFAULT '00:00:00'::interval, remedied_by text DEFAULT NULL::text) RETURNS TABLE(id bigint, new_id bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('delay', requeue.delay, '0', '366 days');
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.dead_message d
         WHERE d.id = ANY (requeue.ids) AND d.lock_token = requeue.lock_token AND d.lock_expires_at > clock_timestamp()
        RETURNING d.id, d.archived_at, d.locked_by),
    published AS (
        INSERT INTO messages.message AS m (queue_name, message, priority, visible_at, headers, reference, requeued_from, requeues)
        SELECT a.queue_name, coalesce(requeue.messages -> a.id::text, a.message), a.priority,
               clock_timestamp() + requeue.delay, a.headers, a.reference, a.id, a.requeues + 1
          FROM mine JOIN messages.message_archive a ON a.id = mine.id AND a.archived_at = mine.archived_at
         ORDER BY a.id
        RETURNING m.id AS new_id, m.requeued_from)
    UPDATE messages.message_archive a
       SET remedy = 'requeued', remedied_at = clock_timestamp(), requeued_as = p.new_id,
           remedied_by = coalesce(requeue.remedied_by, mine.locked_by)
      FROM mine JOIN published p ON p.requeued_from = mine.id
     WHERE a.id = mine.id AND a.archived_at = mine.archived_at
    RETURNING a.id, a.requeued_as;
END $$;
COMMENT ON FUNCTION messages.requeue(lock_token uuid, ids bigint[], messages jsonb, delay interval, remedied_by text) IS 'Publishes leased dead messages again under new ids, with the body from messages {"id": body} where one is given, and notes it in the archive. An id that is missing was lost. PQ004: bad delay.';
CREATE FUNCTION messages.requeue_dead(queue_name text DEFAULT NULL::text, max_messages integer DEFAULT 1000, results text[] DEFAULT ARRAY['failed'::text, 'lock_expired'::text], max_requeues integer DEFAULT NULL::integer, delay interval DEFAULT '00:00:00'::interval, remedied_by text DEFAULT NULL::text) RETURNS TABLE(id bigint, new_id bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    token uuid;
    taken bigint[];
BEGIN
    SELECT min(d.lock_token::text)::uuid, array_agg(d.id) FILTER (WHERE max_requeues IS NULL OR d.requeues < max_requeues)
      INTO token, taken
      FROM messages.lease_dead(requeue_dead.queue_name, requeue_dead.max_messages, '1 minute', requeue_dead.remedied_by,
                               requeue_dead.results) d;
    RETURN QUERY SELECT r.id, r.new_id FROM messages.requeue(token, taken, NULL, requeue_dead.delay, requeue_dead.remedied_by) r;
    UPDATE messages.dead_message d SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL WHERE d.lock_token = token;
END $$;
COMMENT ON FUNCTION messages.requeue_dead(queue_name text, max_messages integer, results text[], max_requeues integer, delay interval, remedied_by text) IS 'Leases dead messages and requeues them in one call; leaves those that were requeued max_requeues times already. Errors as lease_dead.';
CREATE FUNCTION messages.ring(queue_name text, max_rings integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    rung   integer := 0;
    band   record;
BEGIN
    FOR band IN
        SELECT b.priority, messages.mark(b.low_water) AS lowest
          FROM messages.band b WHERE b.queue_name = ring.queue_name ORDER BY b.priority DESC
    LOOP
        rung := rung + (
            SELECT count(pg_notify('new_message', waiting.id::text)) FROM (
                SELECT m.id FROM messages.message m
                 WHERE m.queue_name = ring.queue_name AND m.priority = band.priority
                   AND m.visible_at >= band.lowest AND m.visible_at <= moment AND m.lock_expires_at IS NULL
                 ORDER BY m.visible_at, m.id LIMIT greatest(max_rings - rung, 0)) waiting);
    END LOOP;
    RETURN rung;
END $$;
COMMENT ON FUNCTION messages.ring(queue_name text, max_rings integer) IS 'Internal. Sends new_message again for the oldest ready messages of a queue and returns for how many.';
CREATE FUNCTION messages.schema_version() RETURNS integer
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ SELECT coalesce(max(version), 0) FROM messages.schema_migration $$;
COMMENT ON FUNCTION messages.schema_version() IS 'The newest migration that was applied.';
CREATE FUNCTION messages.set_mark(sequence regclass, moment timestamp with time zone) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ SELECT setval(sequence, greatest((extract(epoch FROM moment) * 1000000)::bigint, 1)) $$;
COMMENT ON FUNCTION messages.set_mark(sequence regclass, moment timestamp with time zone) IS 'Internal. Sets a mark of a band, at once and for everybody, whatever becomes of the transaction.';
CREATE FUNCTION messages.status(queue_name text DEFAULT NULL::text) RETURNS SETOF messages.queue_status
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    IF status.queue_name IS NOT NULL AND NOT EXISTS (SELECT FROM messages.queue q WHERE q.queue_name = status.queue_name) THEN
        PERFORM messages.raise_unknown_queue(status.queue_name);
    END IF;
    RETURN QUERY
    SELECT q.queue_name, q.paused, count(m.id),
           count(m.id) FILTER (WHERE m.visible_at <= moment AND coalesce(m.lock_expires_at <= moment, true)),
           count(m.id) FILTER (WHERE m.lock_expires_at > moment),
           count(m.id) FILTER (WHERE m.visible_at > moment AND coalesce(m.lock_expires_at <= moment, true)),
           moment - min(m.visible_at) FILTER (WHERE m.visible_at <= moment AND coalesce(m.lock_expires_at <= moment, true)),
           (SELECT count(*) FROM messages.dead_message d WHERE d.queue_name = q.queue_name),
           (SELECT moment - u.finished_at FROM messages.upkeep_run u)
      FROM messages.queue q LEFT JOIN messages.message m ON m.queue_name = q.queue_name
     WHERE status.queue_name IS NULL OR q.queue_name = status.queue_name
     GROUP BY q.queue_name, q.paused
     ORDER BY q.queue_name;
END $$;
COMMENT ON FUNCTION messages.status(queue_name text) IS 'Each queue: depth = ready + leased + delayed; age of the oldest ready message; open dead messages; time since the last upkeep. Counts every message. PQ001: unknown queue.';
CREATE FUNCTION messages.sweep(queue_name text, priority smallint, below timestamp with time zone, max_attempts integer, max_messages integer, OUT lowest timestamp with time zone, OUT freed integer, OUT archived integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    -- One statement, one snapshot: what it archives is what it deletes. A lease taken by plain SQL has no token and did
    -- not count its attempt, so its end counts it.
    WITH stale AS MATERIALIZED (
        SELECT m.ctid AS place, m.visible_at,
               coalesce(m.expires_at <= moment, false)
               OR m.attempts + (m.lock_token IS NULL)::integer >= sweep.max_attempts AS over
          FROM messages.message m
         WHERE m.queue_name = sweep.queue_name AND m.priority = sweep.priority
           AND m.visible_at < sweep.below AND m.visible_at <= moment
           AND coalesce(m.lock_expires_at, m.expires_at) <= moment
         ORDER BY m.visible_at, m.id LIMIT sweep.max_messages FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM messages.message m WHERE m.ctid = ANY (ARRAY(SELECT place FROM stale WHERE over)) RETURNING m.*),
    buried AS (
        INSERT INTO messages.message_archive (id, created_at, leased_at, requeued_from, priority, attempts, requeues,
                                              queue_name, result, handled_by, details, reference, headers, message)
        SELECT id, created_at, leased_at, requeued_from, priority,
               attempts + (lock_expires_at IS NOT NULL AND lock_token IS NULL)::integer, requeues, queue_name,
               CASE WHEN lock_expires_at IS NULL THEN 'expired' ELSE 'lock_expired' END, locked_by,
               CASE WHEN lock_expires_at IS NULL THEN format('not handled by %s', expires_at)
                    ELSE format('the lease ended at %s without a result', lock_expires_at) END,
               reference, headers, message
          FROM gone RETURNING 1),
    again AS (
        UPDATE messages.message m
           SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL,
               attempts = m.attempts + (m.lock_token IS NULL)::integer
         WHERE m.ctid = ANY (ARRAY(SELECT place FROM stale WHERE NOT over)) RETURNING m.visible_at)
    SELECT (SELECT min(visible_at) FROM again), (SELECT count(*) FROM again), (SELECT count(*) FROM buried)
      INTO lowest, freed, archived;
    -- Ready and yet below the mark: its publisher committed late, or a consumer rolled back.
    lowest := least(lowest, (
        SELECT m.visible_at FROM messages.message m
         WHERE m.queue_name = sweep.queue_name AND m.priority = sweep.priority
           AND m.visible_at < sweep.below AND m.visible_at <= moment AND m.lock_expires_at IS NULL
         ORDER BY m.visible_at, m.id LIMIT 1));
END $$;
COMMENT ON FUNCTION messages.sweep(queue_name text, priority smallint, below timestamp with time zone, max_attempts integer, max_messages integer, OUT lowest timestamp with time zone, OUT freed integer, OUT archived integer) IS 'Internal. Below a mark: archives what is exhausted or too late, frees expired leases, returns the oldest message that is ready.';
CREATE FUNCTION messages.sweep_all(queue_name text, priority smallint, max_attempts integer) RETURNS TABLE(lowest timestamp with time zone, freed bigint, archived bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    below timestamptz;
    swept record;
BEGIN
    freed := 0;
    archived := 0;
    -- Leases lie below the low-water mark, except those that plain SQL took somewhere behind it: look a little further.
    SELECT max(ahead.visible_at) + interval '1 microsecond' INTO below FROM (
        SELECT m.visible_at
          FROM messages.message m
         WHERE m.queue_name = sweep_all.queue_name AND m.priority = sweep_all.priority
           AND m.visible_at >= (SELECT messages.mark(b.low_water) FROM messages.band b
                                 WHERE b.queue_name = sweep_all.queue_name AND b.priority = sweep_all.priority)
         ORDER BY m.visible_at, m.id LIMIT 10000) ahead;
    LOOP
        swept := messages.sweep(sweep_all.queue_name, sweep_all.priority, coalesce(below, 'infinity'), max_attempts, 1000);
        lowest := swept.lowest;
        freed := freed + swept.freed;
        archived := archived + swept.archived;
        EXIT WHEN swept.freed + swept.archived < 1000;
    END LOOP;
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION messages.sweep_all(queue_name text, priority smallint, max_attempts integer) IS 'Internal. Sweeps a queue and priority until nothing is left to sweep.';
CREATE FUNCTION messages.take(queue_name text, max_messages integer, max_attempts integer) RETURNS tid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    moment   timestamptz := clock_timestamp();
    wanted   integer := max_messages;
    taken    tid[] := '{}';
    band     record;
    found_at tid[];
    first    timestamptz;
    from_at  timestamptz;
    to_at    timestamptz;
    swept    boolean;
BEGIN
    FOR band IN
        -- What messages.mark() reads, spelled out: two calls less on the hottest path.
        SELECT b.priority, b.low_water AS low_water_mark, b.sweep_due AS sweep_due_mark,
               coalesce('epoch'::timestamptz + pg_sequence_last_value(b.low_water) * interval '1 us', '-infinity') AS low_water,
               coalesce('epoch'::timestamptz + pg_sequence_last_value(b.sweep_due) * interval '1 us', '-infinity') AS sweep_due
          FROM messages.band b WHERE b.queue_name = take.queue_name ORDER BY b.priority DESC
    LOOP
        from_at := band.low_water;
        to_at := 'infinity';
        swept := false;
        LOOP
            IF wanted > 0 THEN
                SELECT array_agg(ready.ctid), min(ready.visible_at) INTO found_at, first
                  FROM (SELECT m.ctid, m.visible_at
                          FROM messages.message m
                         WHERE m.queue_name = take.queue_name AND m.priority = band.priority
                           AND m.visible_at >= from_at AND m.visible_at < to_at AND m.visible_at <= moment
                           AND m.lock_expires_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > moment)
                           AND (NOT swept OR m.ctid <> ALL (taken))
                         ORDER BY m.visible_at, m.id LIMIT wanted FOR UPDATE SKIP LOCKED) ready;
                IF found_at IS NOT NULL THEN
                    taken := taken || found_at;
                    wanted := wanted - cardinality(found_at);
                    IF NOT swept AND first > from_at + interval '5 ms' THEN
                        PERFORM messages.set_mark(band.low_water_mark, first - interval '1 ms');
                    END IF;
                END IF;
            END IF;
            -- A sweep pays for itself: at most 2 % of the time, and once a second while there is enough without it.
            EXIT WHEN swept OR moment < band.sweep_due + CASE WHEN wanted > 0 THEN interval '0' ELSE interval '1 s' END;
            swept := true;
            -- Whoever still wants more has seen all that is ready, so what the sweep frees may lie anywhere.
            to_at := CASE WHEN wanted > 0 THEN 'infinity' ELSE from_at END;
            SELECT s.lowest INTO from_at
              FROM messages.sweep(take.queue_name, band.priority, to_at, max_attempts, greatest(max_messages, 100)) s;
            PERFORM messages.set_mark(band.sweep_due_mark, clock_timestamp() + 50 * (clock_timestamp() - moment));
            EXIT WHEN from_at IS NULL;
            IF from_at < band.low_water THEN
                PERFORM messages.set_mark(band.low_water_mark, from_at);
            END IF;
        END LOOP;
        EXIT WHEN wanted <= 0;
    END LOOP;
    RETURN taken;
END $$;
COMMENT ON FUNCTION messages.take(queue_name text, max_messages integer, max_attempts integer) IS 'Internal. Locks ready messages for this transaction, highest priority and oldest first, and returns where they are.';
CREATE FUNCTION messages.uninstall_cron() RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    removed integer := 0;
BEGIN
    IF to_regclass('cron.job') IS NOT NULL THEN
        EXECUTE $jobs$ SELECT count(cron.unschedule(jobid)) FROM cron.job WHERE jobname LIKE 'messages:%' $jobs$ INTO removed;
    END IF;
    RETURN removed;
END $_$;
COMMENT ON FUNCTION messages.uninstall_cron() IS 'Removes the pg_cron jobs of the queue and returns how many there were.';
CREATE FUNCTION messages.upkeep() RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    band     record;
    swept    record;
    freed    bigint := 0;
    archived bigint := 0;
    rung     bigint := 0;
    made     integer;
    purged   bigint := 0;
BEGIN
    -- One at a time is enough; the others find nothing to do.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('messages.upkeep', 0)) THEN
        RETURN jsonb_build_object('skipped', 'another upkeep is running');
    END IF;
    FOR band IN
        SELECT b.queue_name, b.priority, b.low_water, q.max_attempts
          FROM messages.band b JOIN messages.queue q USING (queue_name)
         ORDER BY b.queue_name, b.priority DESC
    LOOP
        SELECT * INTO swept FROM messages.sweep_all(band.queue_name, band.priority, band.max_attempts);
        freed := freed + swept.freed;
        archived := archived + swept.archived;
        IF swept.lowest < messages.mark(band.low_water) THEN
            PERFORM messages.set_mark(band.low_water, swept.lowest);
        END IF;
    END LOOP;
    IF pg_notification_queue_usage() <= 0.5 THEN
        SELECT coalesce(sum(messages.ring(q.queue_name, 100)), 0) INTO rung
          FROM messages.queue q WHERE q.notify <> 'off' AND NOT q.paused;
    END IF;
    made := messages.make_archive_partitions();
    IF to_regclass('cron.job_run_details') IS NOT NULL THEN
        purged := messages.purge_cron_history('3 days');
    END IF;
    INSERT INTO messages.upkeep_run AS u (finished_at, done_by)
    VALUES (clock_timestamp(), coalesce(nullif(current_setting('application_name'), ''), session_user))
    ON CONFLICT (only_row) DO UPDATE SET finished_at = excluded.finished_at, done_by = excluded.done_by;
    RETURN jsonb_build_object('freed', freed, 'archived', archived, 'rung', rung,
                              'partitions_made', made, 'cron_history_purged', purged);
END $$;
COMMENT ON FUNCTION messages.upkeep() IS 'Archives what expired, rings again for what waits, makes partitions, purges its own pg_cron history. Idempotent; safe to run any number of times at once. Adds speed, never correctness.';
CREATE FUNCTION messages.upkeep_mode() RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    scheduled boolean := false;
BEGIN
    IF to_regclass('cron.job') IS NOT NULL THEN
        EXECUTE $jobs$ SELECT EXISTS (SELECT FROM cron.job WHERE jobname = 'messages:upkeep' AND active) $jobs$ INTO scheduled;
    END IF;
    RETURN CASE WHEN scheduled THEN 'pg_cron' ELSE 'airflow' END;
END $_$;
COMMENT ON FUNCTION messages.upkeep_mode() IS 'Who does the upkeep: pg_cron if its job is scheduled here, else airflow.';
CREATE TABLE messages.message (
    id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    visible_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lock_expires_at timestamp with time zone,
    leased_at timestamp with time zone,
    expires_at timestamp with time zone,
    lock_token uuid,
    requeued_from bigint,
    priority smallint DEFAULT 0 NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    requeues smallint DEFAULT 0 NOT NULL,
    queue_name text DEFAULT 'default'::text NOT NULL,
    locked_by text,
    reference text,
    headers jsonb,
    message jsonb NOT NULL,
    CONSTRAINT message_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT message_requeues_check CHECK ((requeues >= 0)),
    CONSTRAINT message_token_needs_a_lease CHECK (((lock_token IS NULL) OR (lock_expires_at IS NOT NULL)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.1', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='50000', vacuum_truncate=off);
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
ALTER TABLE messages.message ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME messages.message_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE messages.message_archive (
    id bigint DEFAULT nextval('messages.message_id_seq'::regclass) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    archived_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    leased_at timestamp with time zone,
    requeued_from bigint,
    priority smallint DEFAULT 0 NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    requeues smallint DEFAULT 0 NOT NULL,
    queue_name text DEFAULT 'default'::text NOT NULL,
    result text NOT NULL,
    handled_by text,
    details text,
    reference text,
    remedy text,
    remedied_at timestamp with time zone,
    remedied_by text,
    requeued_as bigint,
    dismissed_for text,
    headers jsonb,
    message jsonb NOT NULL,
    CONSTRAINT archive_remedy CHECK (
CASE remedy
    WHEN 'requeued'::text THEN ((requeued_as IS NOT NULL) AND (dismissed_for IS NULL))
    WHEN 'dismissed'::text THEN ((requeued_as IS NULL) AND (dismissed_for IS NOT NULL))
    ELSE ((remedy IS NULL) AND (requeued_as IS NULL) AND (dismissed_for IS NULL))
END),
    CONSTRAINT archive_result CHECK ((result = ANY (ARRAY['success'::text, 'failed'::text, 'rejected'::text, 'lock_expired'::text, 'expired'::text]))),
    CONSTRAINT archive_success_needs_no_remedy CHECK (((remedy IS NULL) OR (result <> 'success'::text)))
)
PARTITION BY RANGE (archived_at);
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
CREATE VIEW messages.archive_overview AS
 SELECT message_archive.id,
    message_archive.queue_name,
    message_archive.result,
    message_archive.created_at,
    message_archive.leased_at,
    message_archive.archived_at,
    message_archive.attempts,
    message_archive.handled_by,
    message_archive.details,
    message_archive.reference,
    message_archive.requeues,
    message_archive.requeued_from,
    message_archive.remedy,
    message_archive.remedied_at,
    message_archive.remedied_by,
    message_archive.requeued_as,
    message_archive.dismissed_for,
    pg_column_size(message_archive.message) AS body_bytes
   FROM messages.message_archive;
COMMENT ON VIEW messages.archive_overview IS 'Finished messages, without bodies and headers.';
CREATE TABLE messages.band (
    queue_name text NOT NULL,
    priority smallint NOT NULL,
    low_water regclass NOT NULL,
    sweep_due regclass NOT NULL
);
COMMENT ON TABLE messages.band IS 'The messages of one queue and priority: where a lease starts to look.';
COMMENT ON COLUMN messages.band.queue_name IS 'The queue.';
COMMENT ON COLUMN messages.band.priority IS 'The priority.';
COMMENT ON COLUMN messages.band.low_water IS 'Sequence: a lease looks from this visible_at on. A hint, never the truth: a sweep looks below it.';
COMMENT ON COLUMN messages.band.sweep_due IS 'Sequence: the moment from which a lease may pay for the next sweep.';
CREATE SEQUENCE messages.band_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
COMMENT ON SEQUENCE messages.band_seq IS 'Numbers the sequences of the bands.';
CREATE TABLE messages.dead_message (
    id bigint NOT NULL,
    archived_at timestamp with time zone NOT NULL,
    lock_expires_at timestamp with time zone,
    lock_token uuid,
    queue_name text NOT NULL,
    result text NOT NULL,
    locked_by text
);
COMMENT ON TABLE messages.dead_message IS 'Dead messages about which nothing was decided yet: the work list of remediation.';
COMMENT ON COLUMN messages.dead_message.id IS 'Id of the archived message.';
COMMENT ON COLUMN messages.dead_message.archived_at IS 'When it died; names its archive partition.';
COMMENT ON COLUMN messages.dead_message.lock_expires_at IS 'End of the lease of who is deciding; NULL while nobody is.';
COMMENT ON COLUMN messages.dead_message.lock_token IS 'The fence: requeue and dismiss need it.';
COMMENT ON COLUMN messages.dead_message.queue_name IS 'The queue that it was published to.';
COMMENT ON COLUMN messages.dead_message.result IS 'How it died.';
COMMENT ON COLUMN messages.dead_message.locked_by IS 'Who holds the lease.';
CREATE SEQUENCE messages.low_water_1
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE messages.message_archive_default (
    id bigint DEFAULT nextval('messages.message_id_seq'::regclass) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    archived_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    leased_at timestamp with time zone,
    requeued_from bigint,
    priority smallint DEFAULT 0 NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    requeues smallint DEFAULT 0 NOT NULL,
    queue_name text DEFAULT 'default'::text NOT NULL,
    result text NOT NULL,
    handled_by text,
    details text,
    reference text,
    remedy text,
    remedied_at timestamp with time zone,
    remedied_by text,
    requeued_as bigint,
    dismissed_for text,
    headers jsonb,
    message jsonb NOT NULL,
    CONSTRAINT archive_remedy CHECK (
CASE remedy
    WHEN 'requeued'::text THEN ((requeued_as IS NOT NULL) AND (dismissed_for IS NULL))
    WHEN 'dismissed'::text THEN ((requeued_as IS NULL) AND (dismissed_for IS NOT NULL))
    ELSE ((remedy IS NULL) AND (requeued_as IS NULL) AND (dismissed_for IS NULL))
END),
    CONSTRAINT archive_result CHECK ((result = ANY (ARRAY['success'::text, 'failed'::text, 'rejected'::text, 'lock_expired'::text, 'expired'::text]))),
    CONSTRAINT archive_success_needs_no_remedy CHECK (((remedy IS NULL) OR (result <> 'success'::text)))
);
CREATE VIEW messages.message_overview AS
 SELECT message.id,
    message.queue_name,
    message.priority,
    message.created_at,
    message.visible_at,
    message.leased_at,
    message.lock_expires_at,
    message.locked_by,
    message.attempts,
    message.requeues,
    message.requeued_from,
    message.reference,
    message.expires_at,
    pg_column_size(message.message) AS body_bytes
   FROM messages.message;
COMMENT ON VIEW messages.message_overview IS 'Messages that are not finished, without bodies, headers and tokens.';
CREATE TABLE messages.queue (
    queue_name text NOT NULL,
    max_attempts smallint DEFAULT 5 NOT NULL,
    lease_for interval DEFAULT '00:05:00'::interval NOT NULL,
    notify text DEFAULT 'always'::text NOT NULL,
    max_body_bytes integer DEFAULT 1048576 NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT queue_lease_for_check CHECK (((lease_for > '00:00:00'::interval) AND (lease_for <= '12:00:00'::interval))),
    CONSTRAINT queue_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 1000))),
    CONSTRAINT queue_max_body_bytes_check CHECK (((max_body_bytes >= 1) AND (max_body_bytes <= 268435455))),
    CONSTRAINT queue_notify_check CHECK ((notify = ANY (ARRAY['always'::text, 'gated'::text, 'off'::text]))),
    CONSTRAINT queue_queue_name_check CHECK ((queue_name ~ '^[a-z][a-z0-9_]{0,47}$'::text))
);
COMMENT ON TABLE messages.queue IS 'A named stream of messages and its policy.';
COMMENT ON COLUMN messages.queue.queue_name IS 'Lower-case letter, then letters, digits and underscores; at most 48 characters.';
COMMENT ON COLUMN messages.queue.max_attempts IS 'How often a message is delivered at most; 1 makes an expired lease a dead message at once.';
COMMENT ON COLUMN messages.queue.lease_for IS 'How long a lease lasts when the consumer does not say.';
COMMENT ON COLUMN messages.queue.notify IS 'always: every publish rings; gated: one uncommitted publisher at a time rings; off: consumers poll.';
COMMENT ON COLUMN messages.queue.max_body_bytes IS 'Largest body that a publish may bring, as the size of its jsonb value.';
COMMENT ON COLUMN messages.queue.paused IS 'While true nothing can be leased; publishing goes on.';
COMMENT ON COLUMN messages.queue.created_at IS 'When the queue was created.';
CREATE VIEW messages.result_count AS
 SELECT message_archive.queue_name,
    message_archive.result,
    count(*) AS messages,
    count(*) FILTER (WHERE (message_archive.remedy = 'requeued'::text)) AS requeued,
    count(*) FILTER (WHERE (message_archive.remedy = 'dismissed'::text)) AS dismissed,
    min(message_archive.archived_at) AS first_at,
    max(message_archive.archived_at) AS last_at
   FROM messages.message_archive
  GROUP BY message_archive.queue_name, message_archive.result;
COMMENT ON VIEW messages.result_count IS 'How messages ended, by queue and result. Reads the whole archive.';
CREATE TABLE messages.schema_migration (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
COMMENT ON TABLE messages.schema_migration IS 'One row for each migration that was applied to this schema.';
COMMENT ON COLUMN messages.schema_migration.version IS 'Number of the migration file.';
COMMENT ON COLUMN messages.schema_migration.name IS 'Name of the migration file, without the number and the ending.';
COMMENT ON COLUMN messages.schema_migration.applied_at IS 'When it was applied.';
CREATE SEQUENCE messages.sweep_due_1
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE messages.upkeep_run (
    only_row boolean DEFAULT true NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    done_by text NOT NULL,
    CONSTRAINT upkeep_run_only_row_check CHECK (only_row)
);
COMMENT ON TABLE messages.upkeep_run IS 'The last upkeep.';
COMMENT ON COLUMN messages.upkeep_run.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN messages.upkeep_run.finished_at IS 'When it finished.';
COMMENT ON COLUMN messages.upkeep_run.done_by IS 'The application_name that ran it: pg_cron or a worker or a DAG.';
ALTER TABLE ONLY messages.message_archive ATTACH PARTITION messages.message_archive_default DEFAULT;
INSERT INTO messages.band VALUES ('default', 0, 'messages.low_water_1', 'messages.sweep_due_1');
INSERT INTO messages.queue VALUES ('default', 5, '00:05:00', 'always', 1048576, false, '2026-11-21 07:40:54.282289+00');
INSERT INTO messages.schema_migration VALUES (1, 'tables', '2026-11-21 07:40:54.230048+00');
SELECT pg_catalog.setval('messages.band_seq', 1, true);
SELECT pg_catalog.setval('messages.low_water_1', 1, false);
SELECT pg_catalog.setval('messages.message_id_seq', 1, false);
SELECT pg_catalog.setval('messages.sweep_due_1', 1, false);
ALTER TABLE ONLY messages.band
    ADD CONSTRAINT band_pkey PRIMARY KEY (queue_name, priority);
ALTER TABLE ONLY messages.dead_message
    ADD CONSTRAINT dead_message_pkey PRIMARY KEY (id);
ALTER TABLE ONLY messages.message
    ADD CONSTRAINT message_pkey PRIMARY KEY (id);
ALTER TABLE ONLY messages.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (queue_name);
ALTER TABLE ONLY messages.schema_migration
    ADD CONSTRAINT schema_migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY messages.upkeep_run
    ADD CONSTRAINT upkeep_run_pkey PRIMARY KEY (only_row);
CREATE INDEX dead_message_queue_idx ON messages.dead_message USING btree (queue_name, id);
CREATE INDEX message_archive_archived_at_idx ON ONLY messages.message_archive USING brin (archived_at);
CREATE INDEX message_archive_default_archived_at_idx ON messages.message_archive_default USING brin (archived_at);
CREATE INDEX message_archive_id_idx ON ONLY messages.message_archive USING btree (id);
CREATE INDEX message_archive_default_id_idx ON messages.message_archive_default USING btree (id);
CREATE INDEX message_lease_idx ON messages.message USING btree (queue_name, priority DESC, visible_at, id);
ALTER INDEX messages.message_archive_archived_at_idx ATTACH PARTITION messages.message_archive_default_archived_at_idx;
ALTER INDEX messages.message_archive_id_idx ATTACH PARTITION messages.message_archive_default_id_idx;
CREATE TRIGGER dead_message AFTER INSERT ON messages.message_archive FOR EACH ROW WHEN ((new.result <> 'success'::text)) EXECUTE FUNCTION messages.dead_message();
CREATE TRIGGER lease_taken_over BEFORE UPDATE OF lock_expires_at ON messages.message FOR EACH ROW WHEN (((old.lock_token = new.lock_token) AND (old.lock_expires_at < new.lock_expires_at) AND (old.lock_expires_at <= clock_timestamp()))) EXECUTE FUNCTION messages.lease_taken_over();
CREATE TRIGGER new_message AFTER INSERT ON messages.message REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION messages.new_message();
ALTER TABLE ONLY messages.band
    ADD CONSTRAINT band_queue_name_fkey FOREIGN KEY (queue_name) REFERENCES messages.queue(queue_name) ON DELETE CASCADE;
REVOKE ALL ON FUNCTION messages.add_band(queue_name text, priority smallint) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.alter_queue(queue_name text, max_attempts integer, lease_for interval, notify text, max_body_bytes integer, paused boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.archive(lock_token uuid, ids bigint[], result text, details text, handled_by text, outcomes jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.check_dead_lease(queue_name text, max_messages integer, results text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.check_duration(name text, value interval, at_least interval, at_most interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.check_policy(max_attempts integer, lease_for interval, notify text, max_body_bytes integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.check_publish(priority integer, delay interval, expires_in interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.consumable_queue(queue_name text, max_messages integer, OUT max_attempts smallint, OUT lease_for interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.consume(queue_name text, max_messages integer, handled_by text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.create_queue(queue_name text, max_attempts integer, lease_for interval, notify text, max_body_bytes integer, paused boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.dead_message() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.dead_queues(queue_names text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.dismiss(lock_token uuid, ids bigint[], reason text, remedied_by text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.extend(lock_token uuid, ids bigint[], lease_for interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.install_cron() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.lease(queue_name text, max_messages integer, lease_for interval, locked_by text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.lease_dead(queue_name text, max_messages integer, lease_for interval, locked_by text, results text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.lease_taken_over() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.make_archive_partitions(months_ahead integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.mark(sequence regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.new_message() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.publish(queue_name text, message jsonb, priority integer, delay interval, expires_in interval, headers jsonb, reference text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.publish_batch(queue_name text, messages jsonb, priority integer, delay interval, expires_in interval, headers jsonb, "references" text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.purge_cron_history(older_than interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.raise_unknown_queue(queue_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.ready_queues(queue_names text[], count_up_to integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.release(lock_token uuid, ids bigint[], delay interval, count_attempt boolean, details text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.requeue(lock_token uuid, ids bigint[], messages jsonb, delay interval, remedied_by text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.requeue_dead(queue_name text, max_messages integer, results text[], max_requeues integer, delay interval, remedied_by text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.ring(queue_name text, max_rings integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.schema_version() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.set_mark(sequence regclass, moment timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.status(queue_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.sweep(queue_name text, priority smallint, below timestamp with time zone, max_attempts integer, max_messages integer, OUT lowest timestamp with time zone, OUT freed integer, OUT archived integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.sweep_all(queue_name text, priority smallint, max_attempts integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.take(queue_name text, max_messages integer, max_attempts integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.uninstall_cron() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.upkeep() FROM PUBLIC;
REVOKE ALL ON FUNCTION messages.upkeep_mode() FROM PUBLIC;
