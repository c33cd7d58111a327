CREATE OR REPLACE FUNCTION messages.is_broken(policy messages.queue) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (SELECT FROM messages.archive_rows a WHERE a.id = pg_sequence_last_value(policy.probe) AND a.result = 'success')
$$;
COMMENT ON FUNCTION messages.is_broken(messages.queue) IS
    'Whether a queue with a broken_since is broken: the message that was let through last did not succeed.';
