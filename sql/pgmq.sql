-- The names of PGMQ on the queues of schema messages, for clients that speak PGMQ: psql -v ON_ERROR_STOP=1 -f sql/pgmq.sql "$DSN"
-- Optional, and nothing else in sql/ uses it: docs/how-to/move-here.md. It calls verbs, and where PGMQ acts by id alone, the
-- statements that sql/README.md has for workers in any language. Run it again after every upgrade.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
SET LOCAL client_min_messages = warning;
DO $$
DECLARE
    owner name := (SELECT r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'messages');
BEGIN
    IF owner IS NULL THEN
        RAISE EXCEPTION 'schema messages is not installed in database %', quote_ident(current_database())
            USING ERRCODE = 'invalid_schema_name', HINT = 'Install it first: pgqueue install --pgmq, or psql -f sql/install.sql';
    ELSIF to_regnamespace('pgmq') IS NULL THEN
        EXECUTE format('CREATE SCHEMA pgmq AUTHORIZATION %I', owner);
        COMMENT ON SCHEMA pgmq IS 'PGMQ''s names for the queues of schema messages. See docs/how-to/move-here.md of airflow-provider-pgqueue.';
    ELSIF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'pgmq' AND n.nspowner = to_regrole(quote_ident(owner))
                         AND obj_description(n.oid, 'pg_namespace') LIKE 'PGMQ''s names for %') THEN
        RAISE EXCEPTION 'schema pgmq of database % is not ours: the extension PGMQ, or its SQL, is there', quote_ident(current_database())
            USING ERRCODE = 'PQ019', HINT = 'Move each of its queues with pgqueue adopt-pgmq QUEUE, then DROP EXTENSION pgmq CASCADE, or DROP SCHEMA pgmq CASCADE where there is no extension.';
    END IF;
    -- All that follows belongs to the owner of the queues and runs with its rights, also now.
    PERFORM set_config('role', owner, true);
    IF to_regtype('pgmq.message_record') IS NULL THEN
        -- In PGMQ 1.13 last_read_at comes before vt. Clients older than it go by the place of a column; those that want it, by its name.
        CREATE TYPE pgmq.message_record AS (
            msg_id bigint, read_ct integer, enqueued_at timestamptz, vt timestamptz, message jsonb, headers jsonb, last_read_at timestamptz);
        CREATE TYPE pgmq.queue_record AS (queue_name varchar, is_partitioned boolean, is_unlogged boolean, created_at timestamptz);
        CREATE TYPE pgmq.metrics_result AS (
            queue_name text, queue_length bigint, newest_msg_age_sec integer, oldest_msg_age_sec integer, total_messages bigint,
            scrape_time timestamptz, queue_visible_length bigint, default_partition_length bigint);
    END IF;
END $$;

-- Queues
CREATE OR REPLACE FUNCTION pgmq.create(queue_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN PERFORM messages.create_queue(queue_name); END $$;
CREATE OR REPLACE FUNCTION pgmq.validate_queue_name(queue_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF length(queue_name) > 48 THEN
        RAISE EXCEPTION 'queue name is too long, % characters', length(queue_name) USING ERRCODE = 'PQ003', HINT = 'Use at most 48.';
    END IF;
END $$;
CREATE OR REPLACE FUNCTION pgmq.detach_archive(queue_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN NULL; END $$;                        -- the archive stays anyway when a queue is dropped
CREATE OR REPLACE FUNCTION pgmq.purge_queue(queue_name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN messages.purge_queue(queue_name); END $$;
CREATE OR REPLACE FUNCTION pgmq.drop_queue(queue_name text, partitioned boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM messages.drop_queue(queue_name, force => true);
    RETURN true;
EXCEPTION WHEN SQLSTATE 'PQ001' THEN
    RETURN false;
END $$;

-- Publish. PGMQ has these overloads, which differ in what the last argument is.
CREATE OR REPLACE FUNCTION pgmq.send(queue_name text, msg jsonb, headers jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN messages.publish(queue_name, msg, headers => headers); END $$;
CREATE OR REPLACE FUNCTION pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN messages.publish(queue_name, msg, headers => headers, visible_at => delay); END $$;
CREATE OR REPLACE FUNCTION pgmq.send(queue_name text, msg jsonb, delay timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN messages.publish(queue_name, msg, visible_at => delay); END $$;
CREATE OR REPLACE FUNCTION pgmq.send(queue_name text, msg jsonb, headers jsonb, delay integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN messages.publish(queue_name, msg, headers => headers, visible_at => clock_timestamp() + make_interval(secs => nullif(delay, 0))); END $$;
CREATE OR REPLACE FUNCTION pgmq.send(queue_name text, msg jsonb, delay integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN messages.publish(queue_name, msg, visible_at => clock_timestamp() + make_interval(secs => nullif(delay, 0))); END $$;

CREATE OR REPLACE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(msgs) = 0 THEN
        RETURN;
    ELSIF headers IS NULL THEN
        RETURN QUERY SELECT messages.publish_batch(queue_name, to_jsonb(msgs), visible_at => delay);
    ELSIF cardinality(headers) IS DISTINCT FROM cardinality(msgs) THEN
        RAISE EXCEPTION '% messages have % headers', cardinality(msgs), cardinality(headers)
            USING ERRCODE = 'PQ004', HINT = 'Give one for each message; NULL is none.';
    ELSE                                   -- publish_batch has one for all
        RETURN QUERY SELECT messages.publish(queue_name, given.msg, visible_at => delay, headers => given.header)
                       FROM unnest(msgs, headers) WITH ORDINALITY AS given (msg, header, number) ORDER BY given.number;
    END IF;
END $$;
CREATE OR REPLACE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[] DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT pgmq.send_batch(queue_name, msgs, headers, NULL::timestamptz); END $$;
CREATE OR REPLACE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], delay timestamptz) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT pgmq.send_batch(queue_name, msgs, NULL::jsonb[], delay); END $$;
CREATE OR REPLACE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay integer) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT pgmq.send_batch(queue_name, msgs, headers, clock_timestamp() + make_interval(secs => nullif(delay, 0))); END $$;
CREATE OR REPLACE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], delay integer) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT pgmq.send_batch(queue_name, msgs, NULL::jsonb[], clock_timestamp() + make_interval(secs => nullif(delay, 0))); END $$;

-- Lease. A lease lasts a millisecond at least, so that a vt of 0 gives the message back at once.
CREATE OR REPLACE FUNCTION pgmq.read(queue_name text, vt integer, qty integer, conditional jsonb DEFAULT '{}') RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- One statement, because PL/pgSQL prepares each anew in each transaction.
    RETURN QUERY SELECT l.id, l.attempts::integer, l.created_at, l.lock_expires_at, l.message, l.headers, clock_timestamp()
                   FROM messages.lease(read.queue_name, CASE WHEN conditional = '{}' THEN read.qty
                                                        ELSE pgmq.not_offered('a read by content', 'a queue for each kind of message') END,
                                       make_interval(secs => greatest(read.vt, 0.001))) l;
END $$;
CREATE OR REPLACE FUNCTION pgmq.read_with_poll(
    queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100, conditional jsonb DEFAULT '{}'
) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ends timestamptz := clock_timestamp() + make_interval(secs => max_poll_seconds);
BEGIN
    LOOP
        RETURN QUERY SELECT * FROM pgmq.read(queue_name, read_with_poll.vt, qty, conditional);
        EXIT WHEN FOUND OR clock_timestamp() >= ends;
        PERFORM pg_sleep(greatest(poll_interval_ms, 1) / 1000.0);
    END LOOP;
END $$;
CREATE OR REPLACE FUNCTION pgmq.pop(queue_name text, qty integer DEFAULT 1) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT c.id, c.attempts::integer, c.created_at, clock_timestamp(), c.message, c.headers, clock_timestamp()
                   FROM messages.consume(pop.queue_name, pop.qty) c;
END $$;

-- What PGMQ does by id, whoever has the message. These functions read the table of the queue, so they check that this login may consume.
-- The planner must find the messages by their ids, also in a session that planned when the table was empty.
CREATE OR REPLACE FUNCTION pgmq.set_vt(queue_name text, msg_ids bigint[], vt timestamptz) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    waits interval := set_vt.vt - clock_timestamp();
    moved bigint[] := '{}';
    held  record;
BEGIN
    PERFORM messages.lease_policy(set_vt.queue_name);
    FOR held IN
        SELECT m.lock_token, array_agg(m.id) AS ids FROM messages.message m
         WHERE m.id = ANY (msg_ids) AND m.queue_name = set_vt.queue_name AND m.lock_expires_at > clock_timestamp() AND m.lock_token IS NOT NULL
         GROUP BY m.lock_token
    LOOP
        IF waits BETWEEN '1 millisecond' AND '12 hours' THEN
            moved := moved || ARRAY(SELECT messages.extend(held.lock_token, held.ids, waits));
        ELSE                               -- a lease does not last longer, and a vt that has passed gives it back
            moved := moved || ARRAY(SELECT messages.release(held.lock_token, held.ids, greatest(waits, '0')));
        END IF;
    END LOOP;
    -- The other messages are not leased, leased by plain SQL, or no longer leased. A message keeps its place in its group.
    UPDATE messages.message m
       SET lock_expires_at = CASE WHEN m.lock_expires_at IS NOT NULL THEN set_vt.vt END,
           visible_at = CASE WHEN m.lock_expires_at IS NULL THEN greatest(set_vt.vt, clock_timestamp()) ELSE m.visible_at END
     WHERE m.id = ANY (msg_ids) AND m.queue_name = set_vt.queue_name AND m.id <> ALL (moved)
       AND (m.lock_expires_at IS NOT NULL OR m.group_key IS NULL);
    IF FOUND THEN                          -- waiting consumers then query when to lease again
        PERFORM pg_notify('new_message', msg_ids[1]::text);
    END IF;
    RETURN QUERY SELECT m.id, m.attempts::integer, m.created_at, coalesce(m.lock_expires_at, m.visible_at), m.message, m.headers, m.leased_at
                   FROM messages.message m WHERE m.id = ANY (msg_ids) AND m.queue_name = set_vt.queue_name ORDER BY m.id;
END $$;
CREATE OR REPLACE FUNCTION pgmq.set_vt(queue_name text, msg_ids bigint[], vt integer) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT * FROM pgmq.set_vt(queue_name, msg_ids, clock_timestamp() + make_interval(secs => set_vt.vt)); END $$;
CREATE OR REPLACE FUNCTION pgmq.set_vt(queue_name text, msg_id bigint, vt timestamptz) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT * FROM pgmq.set_vt(queue_name, ARRAY[set_vt.msg_id], set_vt.vt); END $$;
CREATE OR REPLACE FUNCTION pgmq.set_vt(queue_name text, msg_id bigint, vt integer) RETURNS SETOF pgmq.message_record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT * FROM pgmq.set_vt(queue_name, ARRAY[set_vt.msg_id], clock_timestamp() + make_interval(secs => set_vt.vt)); END $$;

CREATE OR REPLACE FUNCTION pgmq.archive(queue_name text, msg_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    token uuid;
    until timestamptz;
    done  integer;
BEGIN
    IF messages.session_is_limited() THEN
        PERFORM messages.lease_policy(archive.queue_name);
    END IF;
    -- Not queue_name =, which tempts the planner to walk the whole queue.
    RETURN QUERY
    SELECT messages.archive(held.lock_token, held.ids) FROM (
        SELECT m.lock_token, array_agg(m.id) AS ids FROM messages.message m
         WHERE m.id = ANY (msg_ids) AND m.queue_name IS NOT DISTINCT FROM archive.queue_name AND m.lock_expires_at > clock_timestamp()
           AND m.lock_token IS NOT NULL
         GROUP BY m.lock_token) held;
    GET DIAGNOSTICS done = ROW_COUNT;
    IF done < cardinality(msg_ids) THEN    -- the others are not leased, leased by plain SQL, or no longer leased
        token := gen_random_uuid();
        until := clock_timestamp() + interval '1 minute';
        UPDATE messages.message m SET lock_token = token, lock_expires_at = until, locked_by = coalesce(m.locked_by, session_user)
         WHERE m.id = ANY (msg_ids) AND m.queue_name = archive.queue_name;
        RETURN QUERY SELECT messages.archive(token, msg_ids);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION pgmq.archive(queue_name text, msg_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Usually the message is leased, and this is all.
    PERFORM messages.archive(m.lock_token, ARRAY[m.id]) FROM messages.message m
      WHERE m.id = msg_id AND m.queue_name = archive.queue_name AND m.lock_token IS NOT NULL AND NOT messages.session_is_limited();
    RETURN FOUND OR EXISTS (SELECT FROM pgmq.archive(queue_name, ARRAY[msg_id]));
END $$;
CREATE OR REPLACE FUNCTION pgmq.delete(queue_name text, msg_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT pgmq.archive(queue_name, msg_ids); END $$;
CREATE OR REPLACE FUNCTION pgmq.delete(queue_name text, msg_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN pgmq.archive(queue_name, msg_id); END $$;

-- Metrics and lists. Each function shows the queues that this login may observe.
CREATE OR REPLACE FUNCTION pgmq.list_queues() RETURNS SETOF pgmq.queue_record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN RETURN QUERY SELECT q.queue_name::varchar, false, false, q.created_at FROM messages.queue_overview q ORDER BY q.queue_name; END $$;
CREATE OR REPLACE FUNCTION pgmq.metrics_all() RETURNS SETOF pgmq.metrics_result
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT q.queue_name, count(m.id), extract(epoch FROM clock_timestamp() - max(m.created_at))::integer,
           extract(epoch FROM clock_timestamp() - min(m.created_at))::integer,
           greatest(count(m.id), (SELECT p.value::bigint FROM messages.metrics(10000, NULL, '{pgqueue_published_messages_total}') p
                                   WHERE p.labels ->> 'queue' = q.queue_name)),
           clock_timestamp(), count(m.id) FILTER (WHERE m.visible_at <= clock_timestamp() AND coalesce(m.lock_expires_at <= clock_timestamp(), true)),
           NULL::bigint
      FROM messages.queue_overview q LEFT JOIN messages.message m ON m.queue_name = q.queue_name GROUP BY q.queue_name ORDER BY q.queue_name;
END $$;
CREATE OR REPLACE FUNCTION pgmq.metrics(queue_name text) RETURNS pgmq.metrics_result
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found pgmq.metrics_result;
BEGIN
    PERFORM messages.status(metrics.queue_name);
    SELECT * INTO found FROM pgmq.metrics_all() a WHERE a.queue_name = metrics.queue_name;
    RETURN found;
END $$;

-- Functions of PGMQ that this queue does not have.
CREATE OR REPLACE FUNCTION pgmq.not_offered(what text, instead text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% is not offered here, use %', what, instead USING ERRCODE = 'feature_not_supported';
END $$;
DO $$
DECLARE
    other record;
BEGIN
    FOR other IN
        SELECT * FROM (VALUES
            ('create_unlogged(queue_name text)', 'void', 'pgmq.create: a publish that committed is never lost'),
            ('create_non_partitioned(queue_name text)', 'void', 'pgmq.create'),
            ('create_partitioned(queue_name text, partition_interval text DEFAULT NULL, retention_interval text DEFAULT NULL)', 'void', 'pgmq.create, and the retention of messages.alter_queue'),
            ('convert_archive_partitioned(table_name text, partition_interval text DEFAULT NULL, retention_interval text DEFAULT NULL, leading_partition integer DEFAULT NULL)', 'void', 'the archive as it is: it has partitions'),
            ('read_grouped(queue_name text, vt integer, qty integer)', 'SETOF pgmq.message_record', 'messages.publish with a group_key, and pgmq.read'),
            ('read_grouped_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT NULL, poll_interval_ms integer DEFAULT NULL)', 'SETOF pgmq.message_record', 'messages.publish with a group_key, and pgmq.read_with_poll'),
            ('read_grouped_rr(queue_name text, vt integer, qty integer)', 'SETOF pgmq.message_record', 'fair_by of messages.alter_queue, and pgmq.read'),
            ('read_grouped_rr_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT NULL, poll_interval_ms integer DEFAULT NULL)', 'SETOF pgmq.message_record', 'fair_by of messages.alter_queue, and pgmq.read_with_poll'),
            ('create_fifo_index(queue_name text)', 'void', 'messages.publish with a group_key'),
            ('create_fifo_indexes_all()', 'void', 'messages.publish with a group_key'),
            ('send_topic(routing_key text, msg jsonb, headers jsonb DEFAULT NULL, delay integer DEFAULT NULL)', 'integer', 'messages.publish_topic'),
            ('bind_topic(pattern text, queue_name text)', 'void', 'messages.bind_topic'),
            ('unbind_topic(pattern text, queue_name text)', 'boolean', 'messages.unbind_topic'),
            ('enable_notify_insert(queue_name text, throttle_interval_ms integer DEFAULT NULL)', 'void', 'LISTEN new_message'),
            ('disable_notify_insert(queue_name text)', 'void', 'notify of messages.alter_queue')) AS others (call, returns, instead)
    LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION pgmq.%s RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS %L', other.call, other.returns,
                       format('BEGIN PERFORM pgmq.not_offered(%L, %L); END', 'pgmq.' || split_part(other.call, '(', 1), other.instead));
    END LOOP;
END $$;

-- Who may call what: those who may call the verbs behind it.
REVOKE ALL ON SCHEMA pgmq FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgmq FROM PUBLIC;
DO $$
DECLARE
    may record;
BEGIN
    FOR may IN
        SELECT p.oid::regprocedure AS call, to_regrole('messages_' || role) AS role
          FROM pg_proc p CROSS JOIN unnest('{publisher,consumer,observer,admin}'::text[]) AS role
         WHERE p.pronamespace = 'pgmq'::regnamespace AND to_regrole('messages_' || role) IS NOT NULL
           AND CASE WHEN p.proname IN ('send', 'send_batch') THEN role IN ('publisher', 'admin')
                    WHEN p.proname IN ('read', 'read_with_poll', 'pop', 'set_vt', 'archive', 'delete') THEN role IN ('consumer', 'admin')
                    WHEN p.proname IN ('list_queues', 'metrics', 'metrics_all') THEN role IN ('consumer', 'observer', 'admin')
                    WHEN p.proname IN ('create', 'purge_queue', 'drop_queue') THEN role = 'admin'
                    ELSE true END
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA pgmq TO %s', may.role);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', may.call, may.role);
    END LOOP;
END $$;
COMMIT;
