CREATE OR REPLACE FUNCTION messages.delete_old_history(max_rows integer DEFAULT 50000) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    old    record;
    moment timestamptz := clock_timestamp();
BEGIN
    FOR old IN
        SELECT r.relation, k.grain, k.since FROM messages.history_begins() k CROSS JOIN (VALUES ('history'), ('history_cause')) AS r (relation)
    LOOP
        EXECUTE format('DELETE FROM messages.%1$I WHERE ctid = ANY (ARRAY(
                            SELECT o.ctid FROM messages.%1$I o WHERE o.grain = $1 AND (o.bucket_at < $2 OR o.bucket_at > $4)
                             ORDER BY o.bucket_at LIMIT $3))', old.relation) USING old.grain, old.since, delete_old_history.max_rows, moment;
    END LOOP;
    DELETE FROM messages.audit a WHERE a.ctid = ANY (ARRAY(
        SELECT o.ctid FROM messages.audit o WHERE o.at < clock_timestamp() - (SELECT p.audit_for FROM messages.history_policy p)
         ORDER BY o.at LIMIT delete_old_history.max_rows));
END $$;
COMMENT ON FUNCTION messages.delete_old_history(integer) IS 'Deletes what history_policy no longer keeps, and what lies ahead because the clock was wrong, at most max_rows of each kind.';
