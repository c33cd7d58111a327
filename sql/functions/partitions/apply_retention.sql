CREATE OR REPLACE FUNCTION messages.apply_retention(
    max_messages integer DEFAULT 50000, OUT partitions_dropped integer, OUT messages_deleted bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    old    record;
    kept   boolean;
    gone   record;
BEGIN
    partitions_dropped := 0;
    messages_deleted := 0;
    FOR old IN
        SELECT p.* FROM messages.archive_partitions() p
         WHERE p.end_at < moment - (SELECT min(r.retention) FROM messages.archive_retention r)
           AND has_table_privilege(p.partition, 'DELETE')          -- leave out what another role made by hand
    LOOP
        -- One row that has to be kept keeps them all: one of a queue with a longer retention, or a dead message without a remedy.
        EXECUTE format($keep$
            SELECT EXISTS (SELECT FROM messages.dead_message d WHERE d.archived_at >= $3 AND d.archived_at < $1)
                OR EXISTS (SELECT FROM %1$s a LEFT JOIN messages.archive_retention r ON r.queue_name = a.queue_name
                            WHERE r.retention IS NULL OR $1 > $2 - r.retention)
            $keep$, old.partition) INTO kept USING old.end_at, moment, old.first_at;
        CONTINUE WHEN kept;
        BEGIN
            PERFORM messages.drop_and_record_partition(old.partition::regclass);
            partitions_dropped := partitions_dropped + 1;
            PERFORM messages.record_upkeep_step('apply_retention', old.partition::text);
        EXCEPTION
            WHEN lock_not_available THEN
                RAISE WARNING 'partition % is being read: retention drops it next time', old.partition;
            WHEN OTHERS THEN
                PERFORM messages.record_upkeep_step('apply_retention', old.partition::text, SQLSTATE, SQLERRM);
        END;
    END LOOP;
    IF partitions_dropped > 0 THEN
        PERFORM messages.set_archive_begin();
    END IF;
    FOR old IN
        SELECT r.queue_name, moment - r.retention AS before, p.partition
          FROM messages.archive_retention r
          JOIN (SELECT a.partition, a.first_at FROM messages.archive_partitions() a
                UNION ALL SELECT 'messages.message_archive_default', '-infinity') p ON p.first_at < moment - r.retention
         WHERE has_table_privilege(p.partition, 'DELETE')
    LOOP
        EXIT WHEN messages_deleted >= max_messages;
        EXECUTE format($delete$
            WITH gone AS (
                DELETE FROM %1$s old WHERE old.ctid = ANY (ARRAY(
                    SELECT a.ctid FROM %1$s a
                     WHERE a.queue_name = $1 AND a.archived_at < $2
                       AND NOT EXISTS (SELECT FROM messages.dead_message d WHERE d.id = a.id AND d.archived_at = a.archived_at)
                     LIMIT $3))
                RETURNING old.xid, old.archived_at)
            SELECT count(*) AS number, max(g.xid) AS last_xid, max(g.archived_at) AS archived_at FROM gone g
            $delete$, old.partition) INTO gone USING old.queue_name, old.before, max_messages - messages_deleted;
        PERFORM messages.record_archive_removal(old.queue_name, gone.last_xid, gone.archived_at);
        messages_deleted := messages_deleted + gone.number;
    END LOOP;
    UPDATE messages.archive_policy SET retention_applied_at = moment WHERE messages_deleted < max_messages;
    DELETE FROM messages.dropped_queue d WHERE messages_deleted < max_messages AND d.dropped_at < moment - d.retention - interval '1 day';
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('the archive');
END $$;
COMMENT ON FUNCTION messages.apply_retention(integer) IS
    'Removes finished messages that are older than the retention of their queue, also of a queue that was dropped: drops partitions in which nothing has to be kept, else deletes up to max_messages. Dead messages are kept until they have a remedy. The upkeep does it every hour. PQ016: another transaction, such as an upkeep, is changing the archive.';
