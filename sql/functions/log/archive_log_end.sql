CREATE OR REPLACE FUNCTION messages.archive_log_end(after_removal bigint DEFAULT 0, queue_names text[] DEFAULT NULL)
RETURNS TABLE (system text, horizon bigint, removals bigint, gone_before_xid bigint, gone_until timestamptz,
               holder_pid integer, holder_application text, holder_age interval)
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
    SELECT c.system_identifier || '/' || d.oid, log.horizon::text::bigint, p.removals,
           coalesce(gone.before_xid, 0), gone.until, holder.pid, holder.application, holder.age
      FROM log CROSS JOIN pg_control_system() c
      JOIN pg_database d ON d.datname = current_database()
     CROSS JOIN messages.archive_policy p
     CROSS JOIN (SELECT max(r.before_xid) AS before_xid, max(r.archived_at) AS until FROM messages.archive_removal r
                  WHERE r.number > coalesce(after_removal, 0) AND (queue_names IS NULL OR r.queue_name = ANY (queue_names))) gone
      LEFT JOIN holder ON true
$$;
COMMENT ON FUNCTION messages.archive_log_end(bigint, text[]) IS
    'Where the archive as a log ends now: all transactions before the horizon have ended, so everything that they archived can be read, and nothing can appear before it later. Also returns the cluster and database, the number of the last removal of messages, what the removals after after_removal took from these queues (before which place, and archived until when), and the transaction that holds the horizon back.';
