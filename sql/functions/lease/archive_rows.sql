CREATE OR REPLACE FUNCTION messages.archive_rows(
    lock_token uuid,
    ids        bigint[],
    results    text[] DEFAULT NULL,
    details    text[] DEFAULT NULL,
    outputs    text[] DEFAULT NULL,
    handled_by text   DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- As many outcomes as messages: only a hash join takes both once.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    locked  text;
    kept    jsonb[];
    largest integer;
    done    bigint[];
BEGIN
    IF cardinality(archive_rows.ids) <> (SELECT count(DISTINCT given.id) FROM unnest(archive_rows.ids) AS given (id)) THEN
        RAISE EXCEPTION 'an id is given twice, or is NULL' USING ERRCODE = 'PQ004', HINT = 'Give one outcome for each message.';
    END IF;
    IF archive_rows.outputs IS NOT NULL THEN
        BEGIN
            SELECT array_agg(o.output ORDER BY o.place), max(octet_length(o.output::text)) INTO kept, largest
              FROM (SELECT given.output::jsonb, given.place FROM unnest(archive_rows.outputs) WITH ORDINALITY AS given (output, place) OFFSET 0) o;
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN -- SQLERRM would quote the output
            RAISE EXCEPTION 'an output is not JSON that PostgreSQL can store'
                USING ERRCODE = 'PQ004', HINT = 'Give JSON as text, without NUL characters and not nested thousands deep.';
        END;
        IF largest > 65536 THEN
            RAISE EXCEPTION 'an output or failure has % bytes', largest
                USING ERRCODE = 'PQ004', HINT = 'Give at most 65536 bytes; store large results elsewhere and say where.';
        END IF;
    END IF;
    -- Of a batch that lock_ready locked there is a record; any other token is that of a lease.
    DELETE FROM messages.locked_batch b WHERE b.lock_token = archive_rows.lock_token RETURNING b.queue_name INTO locked;
    WITH mine AS (
        DELETE FROM messages.message m
         WHERE m.id = ANY (archive_rows.ids)
           AND CASE WHEN locked IS NULL THEN m.lock_token = archive_rows.lock_token AND m.lock_expires_at > clock_timestamp()
                    ELSE m.lock_expires_at IS NULL AND m.queue_name = locked END
        RETURNING m.*),
    archived AS (
        INSERT INTO messages.message_archive AS a (id, created_at, leased_at, requeued_from, priority, attempts, requeues, queue_name,
                                                   result, handled_by, details, reference, topic, group_key, output, fingerprint,
                                                   headers, message)
        SELECT m.id, m.created_at, CASE WHEN locked IS NULL THEN m.leased_at ELSE transaction_timestamp() END, m.requeued_from, m.priority,
               least(m.attempts + (locked IS NOT NULL)::integer, 32767), m.requeues, m.queue_name, coalesce(o.result, 'success'),
               coalesce(archive_rows.handled_by, m.locked_by), left(o.details, 4000), m.reference, m.topic, m.group_key, o.output,
               CASE WHEN o.result <> 'success' THEN messages.fingerprint(o.result, left(o.details, 4000), NULL) END, m.headers, m.message
          FROM mine m LEFT JOIN unnest(archive_rows.ids, archive_rows.results, archive_rows.details, kept) AS o (id, result, details, output)
            ON o.id = m.id
        RETURNING a.id)
    SELECT array_agg(id) INTO done FROM archived;
    IF cardinality(done) = cardinality(archive_rows.ids) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT unnest(archive_rows.ids) EXCEPT SELECT unnest(done));
END $$;
COMMENT ON FUNCTION messages.archive_rows(uuid, bigint[], text[], text[], text[], text) IS
    'Finishes the messages of a lease, or of a batch that lock_ready locked, and returns the ids that were lost. results (NULL is success), details and outputs (JSON) have one entry per id, in the same order. PQ004: an id that is given twice, an output that is too large, or one that is not JSON.';
