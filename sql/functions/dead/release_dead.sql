CREATE OR REPLACE FUNCTION messages.release_dead(lock_token uuid, ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE messages.dead_message d SET lock_expires_at = NULL, lock_token = NULL, locked_by = NULL
     WHERE d.id = ANY (release_dead.ids) AND d.lock_token = release_dead.lock_token AND d.lock_expires_at > clock_timestamp()
    RETURNING d.id;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.release_dead(uuid, bigint[]) IS
    'Gives leased dead messages back without a remedy and returns the ids; an id that is missing was lost. PQ016: another transaction has a dead message of this lease for more than three seconds.';
