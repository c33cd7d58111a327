CREATE OR REPLACE FUNCTION messages.recorded_steps(lock_token uuid, id bigint) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(m.steps, '[]') FROM messages.message_rows m
     WHERE m.id = recorded_steps.id AND m.lock_token = recorded_steps.lock_token AND m.lock_expires_at > clock_timestamp()
$$;
COMMENT ON FUNCTION messages.recorded_steps(uuid, bigint) IS
    'What record_step() kept for a leased message, in earlier attempts too: an array of {name, result, at, attempt} in the order in which the steps were done. NULL if the lease was lost.';
