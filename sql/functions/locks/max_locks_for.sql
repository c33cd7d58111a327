CREATE OR REPLACE FUNCTION messages.max_locks_for(locks bigint) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN locks > current_setting('max_locks_per_transaction')::bigint * sessions / 2
                THEN (ceil(4.0 * locks / sessions / 64) * 64)::integer END
      FROM (SELECT current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint AS sessions) room
$$;
COMMENT ON FUNCTION messages.max_locks_for(bigint) IS
    'To what max_locks_per_transaction should be set for a transaction that takes so many locks: they then take a quarter of what the server has room for. NULL while they take no more than half, because all sessions share it.';
