CREATE OR REPLACE FUNCTION messages.delete_old_history(max_rows integer DEFAULT 50000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    old     record;
    number  bigint;
    deleted bigint := 0;
BEGIN
    FOR old IN
        SELECT k.grain, k.since FROM messages.history_begins() k WHERE k.since > '-infinity'
    LOOP
        DELETE FROM messages.history h WHERE h.ctid = ANY (ARRAY(
            SELECT o.ctid FROM messages.history o WHERE o.grain = old.grain AND o.bucket_at < old.since
             ORDER BY o.bucket_at LIMIT delete_old_history.max_rows));
        GET DIAGNOSTICS number = ROW_COUNT;
        deleted := deleted + number;
        DELETE FROM messages.history_cause h WHERE h.ctid = ANY (ARRAY(
            SELECT o.ctid FROM messages.history_cause o WHERE o.grain = old.grain AND o.bucket_at < old.since
             ORDER BY o.bucket_at LIMIT delete_old_history.max_rows));
        GET DIAGNOSTICS number = ROW_COUNT;
        deleted := deleted + number;
        IF old.grain = 'minute' THEN
            DELETE FROM messages.history_note n WHERE n.recorded_at < old.since;
        END IF;
    END LOOP;
    DELETE FROM messages.audit a WHERE a.ctid = ANY (ARRAY(
        SELECT o.ctid FROM messages.audit o WHERE o.at < clock_timestamp() - (SELECT p.audit_for FROM messages.history_policy p)
         ORDER BY o.at LIMIT delete_old_history.max_rows));
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN deleted + number;
END $$;
COMMENT ON FUNCTION messages.delete_old_history(integer) IS
    'Deletes what history_policy no longer keeps, at most max_rows of each kind, and returns how many rows there were.';
