-- Checks: of arguments, and locks that are waited for briefly.
--
-- A check raises PQ004 or PQ005, with the argument, its value and the rule, if the rule is broken. NULL means not given. Each rule
-- has one text, whichever verb has the argument.
--
-- A function waits some seconds for a lock that others may hold for long, and then fails with PQ016 (raise_in_use), because other
-- sessions queue up behind it. check_lock_room raises PQ018 for a transaction that locks more than the server has room for.
--
-- Tables: none.

CREATE OR REPLACE FUNCTION messages.check_headers(headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes integer := messages.json_bytes(headers);
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are of type %', jsonb_typeof(headers) USING ERRCODE = 'PQ004', HINT = 'Give a JSON object.';
    END IF;
    IF bytes > 65536 THEN
        RAISE EXCEPTION 'headers of % bytes are too large: the most is 65536', bytes
            USING ERRCODE = 'PQ005', HINT = 'Move into the body what does not describe the message.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_headers IS
    'Raises PQ004 for headers that are not an object, PQ005 for more than 64 kB, as a jsonb value or as its text; NULL means not given.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.json_bytes(document jsonb) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- #> unpacks a value that a table holds compressed. The text counts too, because clients get the text, and ten bytes can hold a
    -- number of 131,072 digits.
    RETURN greatest(pg_column_size(document #> '{}'), octet_length(document::text));
EXCEPTION WHEN program_limit_exceeded OR out_of_memory THEN
    RETURN 2147483647;                     -- no client could read it
END $$;
COMMENT ON FUNCTION messages.json_bytes IS
    'The size of a jsonb value in bytes, or of its text if that is longer; 2,147,483,647 if the text is longer than a text can be.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_reference(reference text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The longest text that fits into an index entry even if it cannot be compressed.
    IF octet_length(reference) > 2600 THEN
        RAISE EXCEPTION 'reference has % bytes', octet_length(reference)
            USING ERRCODE = 'PQ004', HINT = 'Give a text of at most 2600 bytes.';
    END IF;
    RETURN reference;
END $$;
COMMENT ON FUNCTION messages.check_reference IS 'Returns a reference, or raises PQ004 if it is too long; NULL means not given.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_topic(topic text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF topic !~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' OR length(topic) > 255 THEN
        RAISE EXCEPTION 'topic % is not valid', quote_literal(left(topic, 100))
            USING ERRCODE = 'PQ004', HINT = 'Use words of letters, digits, - and _ with single dots between them; at most 255 characters.';
    END IF;
    RETURN topic;
END $$;
COMMENT ON FUNCTION messages.check_topic IS 'Returns a topic, or raises PQ004 if it cannot be one; NULL means not given.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.topic_regex(pattern text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pattern !~ '^([A-Za-z0-9_-]+|[*#])([.]([A-Za-z0-9_-]+|[*#]))*$' OR length(pattern) > 255 THEN
        RAISE EXCEPTION 'topic pattern % is not valid', quote_literal(left(pattern, 100)) USING ERRCODE = 'PQ004',
            HINT = 'Use words, * for any word and # for any number of words, with single dots between them; at most 255 characters.';
    END IF;
    -- Each word is matched with the dot before it, so that # may stand for no word at all.
    RETURN '^' || (
        SELECT string_agg(CASE word WHEN '*' THEN '[.][^.]+' WHEN '#' THEN '([.][^.]+)*' ELSE '[.]' || word END, '' ORDER BY place)
          FROM string_to_table(pattern, '.') WITH ORDINALITY AS words (word, place)) || '$';
END $$;
COMMENT ON FUNCTION messages.topic_regex IS
    'The regular expression of a topic pattern, for a topic with a dot before it. PQ004: bad pattern; NULL means not given.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_no_dedup(keys text, dedup_window interval, on_conflict text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF dedup_window IS NOT NULL OR on_conflict <> 'skip' THEN
        RAISE EXCEPTION '% given, and % NULL', CASE WHEN dedup_window IS NOT NULL THEN 'dedup_window is' ELSE 'on_conflict is' END,
                        CASE keys WHEN 'dedup_keys' THEN 'dedup_keys are' ELSE keys || ' is' END
            USING ERRCODE = 'PQ004', HINT = 'It says what becomes of a repeated key: give both, or neither.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_no_dedup IS
    'Raises PQ004 for an argument that has no effect without dedup keys.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_result(result text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_choice('result', result, '{success,failed,rejected,lock_expired,expired,cancelled}', required => true);
END $$;
COMMENT ON FUNCTION messages.check_result IS 'Raises PQ004 for a result that no message can have.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_outcomes(outcomes jsonb, output jsonb, failure jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome record;
BEGIN
    IF jsonb_typeof(outcomes) <> 'object' THEN
        RAISE EXCEPTION 'outcomes are of type %', jsonb_typeof(outcomes)
            USING ERRCODE = 'PQ004', HINT = 'Give an object: {"id": {"result", "details", "output", "failure"}}.';
    END IF;
    FOR outcome IN
        SELECT o.value ->> 'result' AS result, o.value -> 'output' AS output, o.value -> 'failure' AS failure FROM jsonb_each(outcomes) o
        UNION ALL SELECT NULL, check_outcomes.output, check_outcomes.failure
    LOOP
        IF outcome.result IS NOT NULL THEN    -- an IF: with a WHERE, the planner would call the IMMUTABLE check before it
            PERFORM messages.check_result(outcome.result);
        END IF;
        IF octet_length(outcome.output::text) > 65536 OR octet_length(outcome.failure::text) > 65536 THEN
            RAISE EXCEPTION 'an output or failure has % bytes', greatest(octet_length(outcome.output::text), octet_length(outcome.failure::text))
                USING ERRCODE = 'PQ004', HINT = 'Give at most 65536 bytes; store large results elsewhere and say where.';
        END IF;
        IF jsonb_typeof(outcome.failure) <> 'object' THEN
            RAISE EXCEPTION 'a failure is of type %', jsonb_typeof(outcome.failure)
                USING ERRCODE = 'PQ004', HINT = 'Give an object with error, message and traceback.';
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION messages.check_outcomes IS 'Raises PQ004 for an outcome that the archive cannot keep.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_number(name text, value bigint, at_least bigint, at_most bigint, required boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF required AND value IS NULL OR value NOT BETWEEN at_least AND at_most THEN
        RAISE EXCEPTION '% is %', name, coalesce(value::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Give a whole number from %s to %s.', at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_number IS
    'Raises PQ004 for a number out of range; NULL means not given, unless it is required.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_duration(
    name text, value interval, at_least interval, at_most interval, required boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- From these times on, any number of months is as short and as long as it can be.
    shortest CONSTANT timestamp := '2001-02-01';
    longest  CONSTANT timestamp := '2003-07-01';
BEGIN
    -- PostgreSQL compares intervals as if every month had 30 days, so that -80000 months 2400000 days equal 0. What counts is
    -- the time that adding them yields. Each part is limited to a thousand years, so that the addition cannot overflow.
    IF required AND value IS NULL OR abs(extract(year FROM value)) > 1000 OR abs(extract(day FROM value)) > 365250 OR abs(extract(hour FROM value)) > 8766000
       OR shortest + value < shortest + at_least OR longest + value > longest + at_most THEN
        RAISE EXCEPTION '% is %', name, coalesce(value::text, 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Give a duration from %s to %s.', at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_duration IS
    'Raises PQ004 for a duration that leads to a time out of range, in months of any length; NULL means not given, unless it is required.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_length(name text, value text, at_least integer, at_most integer, required boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF required AND value IS NULL OR length(value) NOT BETWEEN at_least AND at_most THEN
        RAISE EXCEPTION '% has % characters', name, coalesce(length(value), 0) USING ERRCODE = 'PQ004',
            HINT = format(CASE at_least WHEN 0 THEN 'Give at most %2$s characters.' ELSE 'Give a text of %1$s to %2$s characters.' END, at_least, at_most);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_length IS
    'Raises PQ004 for a text that is too short or too long; NULL means not given, unless it is required.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_choice(name text, value text, choices text[], required boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF required AND value IS NULL OR value <> ALL (choices) THEN
        RAISE EXCEPTION '% is %', name, coalesce(quote_literal(left(value, 100)), 'NULL') USING ERRCODE = 'PQ004',
            HINT = format('Give %s or %s.', array_to_string(trim_array(choices, 1), ', '), choices[cardinality(choices)]);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_choice IS
    'Raises PQ004 for a text that is none of these; NULL means not given, unless it is required.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_read_committed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'the isolation level of the transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'PQ004',
                  HINT = 'Nothing was changed. Call it under BEGIN ISOLATION LEVEL READ COMMITTED, so that it sees what was committed while it waited for its lock.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_read_committed IS
    'Raises PQ004 in a transaction that does not see what was committed after its first statement.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.lock_briefly(relation regclass, mode text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    -- All sessions queue up behind a session that waits for such a lock: let them go on between the attempts.
    FOR attempt IN 1..20 LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN %s MODE', relation, mode);
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(random() * attempt / 20);
        END;
    END LOOP;
    PERFORM messages.raise_in_use(relation::text);
END $$;
COMMENT ON FUNCTION messages.lock_briefly IS
    'Locks a table and its partitions until the commit. Waits a tenth of a second, gives way, and tries again, for about seven seconds. PQ016: it was in use each time.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.lock_queue(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM messages.queue q WHERE q.queue_name = lock_queue.queue_name COLLATE "default" FOR NO KEY UPDATE;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('queue %L', lock_queue.queue_name));
END $$;
COMMENT ON FUNCTION messages.lock_queue IS
    'Locks the row of a queue until the commit, so that one transaction at a time counts what the queue allows and takes it. PQ016: another transaction held it for three seconds.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.lock_row(relation regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
BEGIN
    EXECUTE format('SELECT FROM %s FOR NO KEY UPDATE', relation);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(relation::text);
END $$;
COMMENT ON FUNCTION messages.lock_row IS
    'Locks the one row of a table until the commit. PQ016: another transaction held it for three seconds.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.raise_in_use(what text, state text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF state = '40P01' THEN                -- in place of an error that names neither the cause nor the fix
        RAISE EXCEPTION '% is held by a transaction that waits for this one', what USING ERRCODE = 'PQ016', HINT =
            'Repeat the transaction. It does not happen where each transaction has one such call, or all of them make theirs in one order.';
    END IF;
    RAISE EXCEPTION '% is in use', what USING ERRCODE = 'PQ016',
        HINT = 'Nothing was changed. Try again when no long transaction uses it: SELECT pid, application_name, xact_start FROM pg_stat_activity WHERE xact_start < now() - interval ''1 s'' ORDER BY 3; SELECT * FROM pg_prepared_xacts';
END $$;
COMMENT ON FUNCTION messages.raise_in_use IS
    'Raises PQ016 for a lock that other transactions held for too long; with the SQLSTATE of a deadlock, for a lock of a transaction that waits for this one.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.check_lock_room(step text, locks bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := messages.max_locks_for(locks);
BEGIN
    IF locks > 1000 AND wanted IS NOT NULL THEN
        RAISE EXCEPTION '% needs about % locks, and max_locks_per_transaction is %', step, locks, current_setting('max_locks_per_transaction')
            USING ERRCODE = 'PQ018', HINT = format('Nothing was changed. Set max_locks_per_transaction = %s, restart the server, and repeat it.', wanted);
    END IF;
END $$;
COMMENT ON FUNCTION messages.check_lock_room IS
    'Raises PQ018, with the number to set, before a step that takes more than a thousand locks, and more than half of what the server has room for.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.max_locks_for(locks bigint) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN locks > current_setting('max_locks_per_transaction')::bigint * sessions / 2
                THEN (ceil(4.0 * locks / sessions / 64) * 64)::integer END
      FROM (SELECT current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint AS sessions) room
$$;
COMMENT ON FUNCTION messages.max_locks_for IS
    'To what max_locks_per_transaction should be set for a transaction that takes so many locks: they then take a quarter of what the server has room for. NULL while they take no more than half, because all sessions share it.'
    ' [internal]';
