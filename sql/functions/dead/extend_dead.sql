CREATE OR REPLACE FUNCTION messages.extend_dead(lock_token uuid, ids bigint[], lease_for interval) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('lease_for', extend_dead.lease_for, '1 millisecond', '12 hours');
    RETURN QUERY
    UPDATE messages.dead_message d SET lock_expires_at = clock_timestamp() + coalesce(extend_dead.lease_for, '5 minutes')
     WHERE d.id = ANY (extend_dead.ids) AND d.lock_token = extend_dead.lock_token AND d.lock_expires_at > clock_timestamp()
    RETURNING d.id;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.extend_dead(uuid, bigint[], interval) IS
    'Makes leases of dead messages end lease_for from now, and returns the ids; an id that is missing was lost. PQ004: bad duration; PQ016: another transaction has a dead message of this lease for more than three seconds.';
