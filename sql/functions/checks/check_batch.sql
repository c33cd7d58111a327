CREATE OR REPLACE FUNCTION messages.check_batch(
    queue_name text, messages jsonb, "references" text[], topics text[], group_keys text[], dedup_keys text[]
) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    many   integer;
    part   text;
    number integer;
    plain  boolean;
BEGIN
    IF check_batch.queue_name IS NULL THEN
        PERFORM messages.raise_unknown_queue(NULL);
    END IF;
    -- session_is_limited(), without the cost of a call
    IF pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER')
       AND pg_has_role(session_user, to_regrole('messages_admin'), 'USAGE') IS NOT TRUE THEN
        PERFORM messages.check_access(check_batch.queue_name, 'publish');
    END IF;
    IF jsonb_typeof(check_batch.messages) = 'array' THEN
        many := jsonb_array_length(check_batch.messages);
    END IF;
    IF coalesce(many, 0) = 0 THEN
        RAISE EXCEPTION 'the batch is empty or not a JSON array'
            USING ERRCODE = 'PQ004', HINT = 'Give a JSON array with at least one body.';
    END IF;
    FOR part, number, plain IN
        SELECT arrays.part, cardinality(value), (array_ndims(value), array_lower(value, 1)) = (1, 1)
          FROM (VALUES ('references', check_batch."references"), ('topics', check_batch.topics),
                       ('group_keys', check_batch.group_keys), ('dedup_keys', check_batch.dedup_keys)) AS arrays (part, value)
    LOOP
        IF NOT plain THEN
            RAISE EXCEPTION '% are not a list', part
                USING ERRCODE = 'PQ004', HINT = 'Give an array of one dimension, which begins at 1.';
        ELSIF number <> many THEN
            RAISE EXCEPTION 'number of bodies: %; number of %: %', many, part, number
                USING ERRCODE = 'PQ004', HINT = format('Give as many %s as bodies, or none at all.', part);
        END IF;
    END LOOP;
    PERFORM messages.check_reference(reference) FROM unnest(check_batch."references") AS reference;
    PERFORM messages.check_topic(topic) FROM unnest(check_batch.topics) AS topic;
    PERFORM messages.check_length('group_key', key, 1, 255) FROM unnest(check_batch.group_keys) AS key WHERE length(key) NOT BETWEEN 1 AND 255;
    PERFORM messages.check_length('dedup_key', key, 1, 255) FROM unnest(check_batch.dedup_keys) AS key WHERE length(key) NOT BETWEEN 1 AND 255;
END $$;
COMMENT ON FUNCTION messages.check_batch(text, jsonb, text[], text[], text[], text[]) IS
    'Raises PQ004 for a batch that cannot be published.';
