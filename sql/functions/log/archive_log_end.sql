CREATE OR REPLACE FUNCTION messages.archive_log_end()
RETURNS TABLE (system text, horizon bigint, moment timestamptz, begins_at timestamptz,
               gone_before_xid bigint, holder_pid integer, holder_application text, holder_age interval)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH log AS MATERIALIZED (SELECT clock_timestamp() AS moment, pg_snapshot_xmin(pg_current_snapshot()) AS horizon),
    -- The oldest transaction that writes, of any database; one that only reads holds nothing back.
    holder AS (
        SELECT a.pid, a.application_name AS application, log.moment - a.xact_start AS age
          FROM log JOIN pg_stat_activity a ON a.backend_xid = log.horizon::xid
        UNION ALL
        SELECT NULL, 'prepared transaction ' || left(p.gid, 100), log.moment - p.prepared
          FROM log JOIN pg_prepared_xacts p ON p.transaction = log.horizon::xid
         LIMIT 1)
    SELECT c.system_identifier || '/' || d.oid, log.horizon::text::bigint, log.moment, p.begins_at,
           p.gone_before_xid, holder.pid, holder.application, holder.age
      FROM log CROSS JOIN pg_control_system() c
      JOIN pg_database d ON d.datname = current_database()
     CROSS JOIN messages.archive_policy p
      LEFT JOIN holder ON true
$$;
COMMENT ON FUNCTION messages.archive_log_end() IS
    'Where the archive as a log ends now: all transactions before the horizon have ended, so everything that they archived can be read, and nothing can appear before it later. Also returns the cluster and database, where the archive begins, the place up to which messages were removed, and the transaction that holds the horizon back.';
