CREATE OR REPLACE FUNCTION messages.judge_probe(policy messages.queue) RETURNS messages.queue
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF policy.broken_since IS NOT NULL
       AND EXISTS (SELECT FROM messages.archive_rows a WHERE a.id = pg_sequence_last_value(policy.probe) AND a.result = 'success') THEN
        policy.broken_since := NULL;
    END IF;
    RETURN policy;
END $$;
COMMENT ON FUNCTION messages.judge_probe(messages.queue) IS
    'The policy of a queue as it holds now: without a broken_since if the message that was let through last has succeeded.';
