-- Audit: what people do by hand, and the record of it.
--
-- release_messages and cancel change messages without the token of their lease, and publish_test publishes a message by hand.
-- Each change is an entry of the audit, written in the same transaction (record_audit), with the login and
-- the user for whom it acts (act_for). Functions of other chapters that people call, such as alter_queue and requeue_dead, record
-- entries too. An entry has no body and no token.
--
-- Tables: audit.

CREATE OR REPLACE FUNCTION messages.act_for(acting_user text, request uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
BEGIN
    PERFORM messages.check_length('acting_user', act_for.acting_user, 1, 250, required => true);
    PERFORM set_config('messages.acting_user', act_for.acting_user, true);
    IF act_for.request IS NULL THEN
        RETURN true;
    END IF;
    -- The second of two concurrent calls waits here for the commit of the first.
    INSERT INTO messages.inbox (consumer, message_id) VALUES ('request ' || act_for.request, 0) ON CONFLICT DO NOTHING;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('request %s', act_for.request), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.act_for IS
    'Names the user for whom the rest of this transaction acts: the audit records that name next to the login. It is as trustworthy as the caller. Returns false if a transaction with this request was committed before, in the last 30 days: then there is nothing to do. PQ004: no name; PQ016: the same request is under way for more than three seconds.'
    ' [for: publisher, consumer]';

CREATE OR REPLACE FUNCTION messages.audit_log(
    queue_name  text        DEFAULT NULL,
    since       timestamptz DEFAULT NULL,
    until       timestamptz DEFAULT NULL,
    max_entries integer     DEFAULT 100,
    by_user     text        DEFAULT NULL,
    verb        text        DEFAULT NULL
) RETURNS TABLE (audit_id bigint, at timestamptz, login text, application text, acting_user text, action text, queue text, arguments jsonb, affected bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_number('max_entries', audit_log.max_entries, 1, 10000, required => true);
    RETURN QUERY
    SELECT a.audit_id, a.at, a.login, a.application, a.acting_user, a.action, a.queue_name, a.arguments, a.affected
      FROM messages.audit a
     WHERE (audit_log.queue_name IS NULL OR a.queue_name = audit_log.queue_name COLLATE "default")
       AND (audit_log.since IS NULL OR a.at >= audit_log.since) AND (audit_log.until IS NULL OR a.at < audit_log.until)
       AND (audit_log.by_user IS NULL OR audit_log.by_user COLLATE "default" IN (a.acting_user, a.login))
       AND (audit_log.verb IS NULL OR a.action = audit_log.verb COLLATE "default")
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
     ORDER BY a.at DESC, a.audit_id DESC LIMIT audit_log.max_entries;
END $$;
COMMENT ON FUNCTION messages.audit_log IS
    'What was done to the queues by hand, newest first: of one queue, or of those that this login may observe; by one user, whether named or the login itself, and of one verb, if they are given. A queue that does not exist is no error: the entries of those that were dropped stay. PQ004: max_entries out of range.'
    ' [for: observer]';

CREATE OR REPLACE FUNCTION messages.record_audit(action text, queue_name text, arguments jsonb, affected bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- More than twenty ids are left out: their number is enough.
    INSERT INTO messages.audit (action, queue_name, arguments, affected)
    SELECT record_audit.action, record_audit.queue_name,
           CASE WHEN jsonb_array_length(given -> 'ids') > 20 THEN given - 'ids' ELSE given END, record_audit.affected
      FROM jsonb_strip_nulls(record_audit.arguments) AS given
$$;
COMMENT ON FUNCTION messages.record_audit IS
    'Writes an entry of the audit for this login, in its transaction; leaves out arguments that are NULL, and more than twenty ids.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.publish_test(queue_name text, message jsonb, reference text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id bigint := messages.publish(publish_test.queue_name, publish_test.message, reference => publish_test.reference);
BEGIN
    PERFORM messages.record_audit('publish_test', publish_test.queue_name, jsonb_build_object('reference', publish_test.reference), 1);
    RETURN id;
END $$;
COMMENT ON FUNCTION messages.publish_test IS
    'Publishes one message by hand and returns its id. The audit gets an entry, without the body. Errors as in publish.'
    ' [for: publisher]';

CREATE OR REPLACE FUNCTION messages.release_messages(queue_name text, ids bigint[] DEFAULT NULL, holder text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    held  record;
    ended bigint;
    done  bigint := 0;
    why   text   := CASE WHEN release_messages.ids IS NULL THEN 'its consumer ended without a result' ELSE 'its lease was ended by hand' END;
BEGIN
    PERFORM messages.check_queue(release_messages.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(release_messages.ids), 0, 10000);
    -- A holder may have any length, because it is made of names that others chose.
    IF coalesce(release_messages.holder, release_messages.ids::text, '') = '' THEN
        RAISE EXCEPTION 'holder is %', coalesce(quote_literal(release_messages.holder), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give ids, or the locked_by of the leases, or its beginning up to a slash.';
    END IF;
    -- A search by holder reads the whole queue: no index has the lease in it, so that a lease stays cheap.
    -- The messages are locked in the order of their ids, as in archive and release, so that two calls cannot deadlock.
    FOR held IN
        WITH theirs AS MATERIALIZED (
            SELECT m.id, m.lock_token FROM messages.message_rows m
             WHERE m.queue_name = release_messages.queue_name COLLATE "default" AND m.lock_expires_at > clock_timestamp() AND m.lock_token IS NOT NULL
               AND (release_messages.ids IS NULL OR m.id = ANY (release_messages.ids))
               AND (release_messages.holder IS NULL OR m.locked_by = release_messages.holder OR starts_with(m.locked_by, release_messages.holder || '/'))
             ORDER BY m.id FOR UPDATE)
        SELECT t.lock_token, array_agg(t.id) AS ids FROM theirs t GROUP BY t.lock_token ORDER BY min(t.id)
    LOOP
        RETURN QUERY SELECT messages.release(held.lock_token, held.ids, details => why,
                                             failure => jsonb_build_object('message', why, 'unfinished', true));
        GET DIAGNOSTICS ended = ROW_COUNT;
        done := done + ended;
    END LOOP;
    PERFORM messages.record_audit('release_messages', release_messages.queue_name, jsonb_build_object(
        'ids', release_messages.ids, 'holder', release_messages.holder), done) WHERE done > 0;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a lease of queue %L', release_messages.queue_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.release_messages IS
    'Ends leases of a queue, of these messages or of this holder, and returns the ids of the messages that were leased; the attempt counts, because a message may be why its consumer is gone. The leases of a holder are those whose locked_by is holder, or begins with holder and a slash; to find them, it reads the whole queue. A consumer that still works under such a lease has lost it. The audit gets an entry. PQ001: unknown queue; PQ004: neither ids nor holder, or more than 10000 ids; PQ016: a transaction that extends or ends one of these leases stays open for more than three seconds.'
    ' [for: consumer]';

CREATE OR REPLACE FUNCTION messages.cancel(queue_name text, ids bigint[], reason text DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    token CONSTANT uuid := gen_random_uuid();
    done  bigint[];
BEGIN
    PERFORM messages.check_queue(cancel.queue_name, 'consume');
    PERFORM messages.check_number('the number of ids', cardinality(cancel.ids), 0, 10000);
    -- Publishers lock the dedup keys first, in this order, and then the messages.
    PERFORM FROM messages.dedup d WHERE d.queue_name = cancel.queue_name COLLATE "default" AND d.id = ANY (cancel.ids)
      ORDER BY d.dedup_key COLLATE "C" FOR UPDATE;
    -- The order is that of release_messages. The next statement sees what the sessions did that this one waited for.
    PERFORM FROM messages.message_rows m
      WHERE m.id = ANY (cancel.ids) AND m.queue_name = cancel.queue_name COLLATE "default" ORDER BY m.id FOR UPDATE;
    UPDATE messages.message_rows m SET lock_token = token, lock_expires_at = 'infinity'
     WHERE m.id = ANY (cancel.ids) AND m.queue_name = cancel.queue_name COLLATE "default";
    done := ARRAY(SELECT a.id FROM messages.archive(token, cancel.ids, 'cancelled', cancel.reason, session_user) AS a (id) ORDER BY a.id);
    DELETE FROM messages.dedup d WHERE d.queue_name = cancel.queue_name COLLATE "default" AND d.id = ANY (done);
    PERFORM messages.record_audit('cancel', cancel.queue_name, jsonb_build_object(
        'ids', cancel.ids, 'reason', left(cancel.reason, 500)), cardinality(done)) WHERE cardinality(done) > 0;
    RETURN QUERY SELECT unnest(done);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('a message of queue %L', cancel.queue_name), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.cancel IS
    'Archives messages of a queue as cancelled, whether they wait or are leased, and returns the ids; an id that is missing was finished already. A consumer that works on one has lost its lease, and finds out when it extends the lease or archives the message. A cancelled message is not dead: no notification is sent to dead_message, and the next message of its group follows. Its dedup key can be used again. The audit gets an entry. PQ001: unknown queue; PQ004: more than 10000 ids; PQ016: a transaction that took one of these messages, or publishes under its dedup key, stays open for more than three seconds.'
    ' [for: consumer]';
