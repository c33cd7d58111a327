CREATE OR REPLACE FUNCTION messages.release_dead(lock_token uuid, ids bigint[]) RETURNS SETOF bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE messages.dead_message d SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL
     WHERE d.id = ANY (release_dead.ids) AND d.lock_token = release_dead.lock_token AND d.lock_expires_at > clock_timestamp()
    RETURNING d.id
$$;
COMMENT ON FUNCTION messages.release_dead(uuid, bigint[]) IS
    'Gives leased dead messages back without a remedy and returns the ids; an id that is missing was lost.';
