-- Partitions: the archive by time, its retention and its export.
--
-- messages.archive_rows is partitioned by archived_at. make_archive_partitions makes the partitions of the coming months. A row
-- without a partition goes to message_archive_default, until adopt_archive_default moves it. apply_retention deletes messages that
-- are older than the retention of their queue, and drops partitions in which nothing has to be kept.
--
-- An export reads closed partitions. drop_archive_partition drops a partition if its checksums are those of the exported files.
-- Each removal is recorded in messages.archive_removal for readers of the archive as a log.
--
-- Tables: archive_policy, archive_removal.

CREATE OR REPLACE FUNCTION messages.archive_partitions()
RETURNS TABLE (partition text, first_at timestamptz, end_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET quote_all_identifiers = off
AS $$
    SELECT c.oid::regclass::text, bounds[1]::timestamptz, bounds[2]::timestamptz
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     CROSS JOIN LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(]''([^'']+)''[)] TO [(]''([^'']+)''[)]') AS bounds
     WHERE i.inhparent = 'messages.archive_rows'::regclass AND bounds IS NOT NULL
     ORDER BY 2
$$;
COMMENT ON FUNCTION messages.archive_partitions IS
    'The partitions of the archive, oldest first, each for the time from first_at to before end_at; without the default partition.'
    ' [for: observer, reader]';

CREATE OR REPLACE FUNCTION messages.partition_archive(partition_by text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    coming record;
    used   boolean;
BEGIN
    PERFORM messages.check_read_committed(),
            messages.check_choice('partition_by', partition_archive.partition_by, '{day,month}', required => true);
    PERFORM messages.lock_row('messages.archive_policy');
    PERFORM messages.lock_briefly('messages.archive_rows', 'ACCESS EXCLUSIVE');
    UPDATE messages.archive_policy p SET partition_by = partition_archive.partition_by;
    -- Future partitions are empty: drop them, so that the new size begins with the next period and not in months.
    FOR coming IN SELECT * FROM messages.archive_partitions() p WHERE p.first_at > clock_timestamp() LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', coming.partition) INTO used;
        IF NOT used THEN
            EXECUTE format('DROP TABLE %s', coming.partition);
        END IF;
    END LOOP;
    PERFORM messages.make_archive_partitions();
END $$;
COMMENT ON FUNCTION messages.partition_archive IS
    'Sets whether archive partitions are made by day or by month. Partitions that have begun or have messages are kept, so a change takes effect when they end. PQ004: neither day nor month, or an isolation level other than read committed; PQ016: the archive is in use.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.make_archive_partitions() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET lock_timeout = '200ms'
SET default_tablespace = '' SET default_table_access_method = 'heap'
AS $$
#variable_conflict use_column
DECLARE
    size    text;
    moment  timestamptz := clock_timestamp();
    first   timestamptz;
    after   timestamptz;
    begins  timestamptz;
    name    text;
    last    timestamptz;
    made    integer := 0;
BEGIN
    SELECT p.partition_by INTO size FROM messages.archive_policy p FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN                      -- another session makes the partitions
        RETURN 0;
    END IF;
    -- A week ahead by day, three months ahead by month: maintenance may be missing for that long. The partition that
    -- follows the current one, which may have another size, is always made.
    first := date_trunc(size, moment);
    last := greatest(first + CASE size WHEN 'day' THEN interval '7 days' ELSE interval '3 months' END,
                     (SELECT p.end_at FROM messages.archive_partitions() p WHERE p.first_at <= moment AND p.end_at > moment));
    WHILE first <= last LOOP
        after := first + ('1 ' || size)::interval;
        -- Leave out times that other partitions cover, and periods of which the default partition has rows.
        begins := greatest(first, (SELECT max(p.end_at) FROM messages.archive_partitions() p WHERE p.first_at < after AND p.end_at > first));
        IF begins < after
           AND NOT EXISTS (SELECT FROM messages.message_archive_default d WHERE d.archived_at >= begins AND d.archived_at < after) THEN
            name := to_char(begins, CASE WHEN size = 'month' AND begins = first THEN 'YYYYMM' ELSE 'YYYYMMDD' END);
            BEGIN
                EXECUTE format('CREATE TABLE messages.message_archive_%s PARTITION OF messages.archive_rows FOR VALUES FROM (%L) TO (%L)',
                               name, begins, after);
                EXECUTE format('ALTER TABLE messages.message_archive_%s REPLICA IDENTITY FULL', name);
                PERFORM messages.keep_private(format('messages.message_archive_%s', name)::regclass);
                made := made + 1;
                PERFORM messages.record_maintenance_step('make_archive_partitions', name);
            EXCEPTION
                WHEN lock_not_available THEN
                    -- Everybody who archives queues up behind this lock. The partitions are made long before they are needed.
                    RAISE WARNING 'the archive is in use: the next maintenance run makes its partition from %', begins;
                    RETURN made;
                WHEN OTHERS THEN
                    PERFORM messages.record_maintenance_step('make_archive_partitions', name, SQLSTATE, SQLERRM);
            END;
        END IF;
        first := after;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION messages.make_archive_partitions IS
    'Creates the archive partitions (UTC) of the current and the coming days or months and returns how many it made. Waits a fifth of a second for transactions that use the archive, then leaves the rest to the next maintenance run.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.adopt_archive_default() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
DECLARE
    oldest   timestamptz;
    newest   timestamptz;
    first_at timestamptz;
    end_at   timestamptz;
    name     text;
BEGIN
    PERFORM messages.lock_row('messages.archive_policy');
    PERFORM messages.lock_briefly('messages.archive_rows', 'ACCESS EXCLUSIVE');
    SELECT min(d.archived_at), max(d.archived_at) INTO oldest, newest FROM messages.message_archive_default d;
    IF oldest IS NULL THEN
        RETURN NULL;
    END IF;
    -- Whole months, as far as the partitions before and after leave room.
    SELECT greatest(date_trunc('month', oldest), max(p.end_at) FILTER (WHERE p.end_at <= oldest)),
           least(date_trunc('month', newest) + interval '1 month', min(p.first_at) FILTER (WHERE p.first_at > oldest))
      INTO first_at, end_at FROM messages.archive_partitions() p;
    name := format('message_archive_%s_to_%s', to_char(first_at, 'YYYYMMDD'), to_char(end_at, 'YYYYMMDD'));
    ALTER TABLE messages.archive_rows DETACH PARTITION messages.message_archive_default;
    EXECUTE format('ALTER TABLE messages.message_archive_default RENAME TO %I', name);
    EXECUTE format('CREATE TABLE messages.message_archive_default (LIKE messages.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    PERFORM messages.keep_private('messages.message_archive_default');
    ALTER TABLE messages.message_archive_default REPLICA IDENTITY FULL;
    -- What lies behind the next partition is for the next call.
    EXECUTE format('WITH later AS (DELETE FROM messages.%I a WHERE a.archived_at >= %L RETURNING a.*)
                    INSERT INTO messages.message_archive_default SELECT * FROM later', name, end_at);
    EXECUTE format('ALTER TABLE messages.archive_rows ATTACH PARTITION messages.%I FOR VALUES FROM (%L) TO (%L)', name, first_at, end_at);
    ALTER TABLE messages.archive_rows ATTACH PARTITION messages.message_archive_default DEFAULT;
    PERFORM messages.make_archive_partitions();
    RETURN name;
END $$;
COMMENT ON FUNCTION messages.adopt_archive_default IS
    'Turns the default partition of the archive into a partition for the months of its messages, puts an empty default partition in its place, and returns the name (NULL: it was empty). Moves only messages that lie behind another partition, which stay for the next call; reads that partition once, while the archive is locked. PQ016: the archive is in use.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.apply_retention(
    max_messages integer DEFAULT 50000, OUT partitions_dropped integer, OUT messages_deleted bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    old    record;
    keep   text;
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
        -- One row keeps the whole partition: a message of a queue with a longer retention, or an open dead message.
        keep := format($keep$
            SELECT EXISTS (SELECT FROM messages.dead_message d WHERE d.archived_at >= $3 AND d.archived_at < $1)
                OR EXISTS (SELECT FROM %1$s a LEFT JOIN messages.archive_retention r ON r.queue_name = a.queue_name
                            WHERE r.retention IS NULL OR $1 > $2 - r.retention)
            $keep$, old.partition);
        EXECUTE keep INTO kept USING old.end_at, moment, old.first_at;
        CONTINUE WHEN kept;
        BEGIN
            PERFORM messages.check_read_committed();
            -- Again, with the lock: a transaction that it waited for may have archived a message there.
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', old.partition);
            EXECUTE keep INTO kept USING old.end_at, moment, old.first_at;
            CONTINUE WHEN kept;
            PERFORM messages.drop_and_record_partition(old.partition::regclass);
            partitions_dropped := partitions_dropped + 1;
            PERFORM messages.record_maintenance_step('apply_retention', old.partition::text);
        EXCEPTION
            WHEN lock_not_available THEN
                RAISE WARNING 'partition % is being read: retention drops it next time', old.partition;
            WHEN OTHERS THEN
                PERFORM messages.record_maintenance_step('apply_retention', old.partition::text, SQLSTATE, SQLERRM);
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
COMMENT ON FUNCTION messages.apply_retention IS
    'Removes finished messages that are older than the retention of their queue, also of a queue that was dropped: drops partitions in which nothing has to be kept, else deletes up to max_messages. Dead messages are kept until they are resolved. Maintenance does it every hour. It drops no partition at an isolation level other than read committed. PQ016: another transaction, such as a maintenance run, is changing the archive.'
    ' [for: admin]';

CREATE OR REPLACE FUNCTION messages.drop_and_record_partition(partition regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gone record;
BEGIN
    -- Readers continue while the partition is read; no session adds a message to it.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', drop_and_record_partition.partition);
    EXECUTE format($all$
        SELECT array_agg(q.name) AS names, array_agg(q.last_xid) AS last_xids, array_agg(q.newest) AS newest
          FROM (SELECT coalesce(a.queue_name, '') AS name, max(a.xid) AS last_xid, max(a.archived_at) AS newest FROM %s a GROUP BY 1) q
        $all$, drop_and_record_partition.partition) INTO gone;
    EXECUTE format('DROP TABLE %s', drop_and_record_partition.partition);
    PERFORM messages.record_archive_removal(q.name, q.last_xid, q.newest)
       FROM unnest(gone.names, gone.last_xids, gone.newest) AS q (name, last_xid, newest);
END $$;
COMMENT ON FUNCTION messages.drop_and_record_partition IS
    'Drops an archive partition and records for each queue the place in the log behind its last message. 55P03: it is in use.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.record_archive_removal(queue_name text, last_xid bigint, archived_at timestamptz) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- The lock of the row lasts until the end of the transaction, so the numbers are in the order of the commits.
    WITH counted AS (
        UPDATE messages.archive_policy p SET removals = p.removals + 1
         WHERE record_archive_removal.last_xid IS NOT NULL RETURNING p.removals),
    -- A later removal that reaches as far replaces an earlier one: it means the same to every reader.
    replaced AS (
        DELETE FROM messages.archive_removal r USING counted
         WHERE r.queue_name = record_archive_removal.queue_name AND r.before_xid <= record_archive_removal.last_xid + 1
        RETURNING r.archived_at)
    INSERT INTO messages.archive_removal (queue_name, number, before_xid, archived_at)
    SELECT record_archive_removal.queue_name, counted.removals, record_archive_removal.last_xid + 1,
           greatest(record_archive_removal.archived_at, (SELECT max(r.archived_at) FROM replaced r))
      FROM counted
$$;
COMMENT ON FUNCTION messages.record_archive_removal IS
    'Records that messages of a queue were removed from the archive, given the last transaction that archived one of them and when the newest was archived; NULL if none was removed.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.set_archive_begin() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO'
AS $$
DECLARE
    begins timestamptz := (SELECT min(p.first_at) FROM messages.archive_partitions() p);
BEGIN
    ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins;
    EXECUTE format('ALTER TABLE messages.message_archive_default ADD CONSTRAINT archived_before_the_archive_begins CHECK (archived_at >= %L) NOT VALID', begins);
END $$;
COMMENT ON FUNCTION messages.set_archive_begin IS
    'Records where the archive begins after its oldest partition was dropped; older messages are refused from now on.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.closed_archive_partitions(
    older_than interval DEFAULT '0', names text[] DEFAULT NULL, with_open boolean DEFAULT false)
RETURNS TABLE (name text, oid bigint, first_at timestamptz, end_at timestamptz, pages bigint, bytes bigint,
               rows_in_page double precision, columns jsonb, before_xid bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('older_than', closed_archive_partitions.older_than, '0', '36600 days');
    RETURN QUERY
    SELECT c.relname::text, c.oid::bigint, p.first_at, p.end_at,
           pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_table_size(c.oid),
           -- A partition that was never analysed has no statistics: this is a guess.
           CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE 30 END, archive.columns,
           -- An export does not read what later transactions archive, so the rows stay the same while it reads them.
           CASE WHEN p.end_at > clock_timestamp() THEN pg_snapshot_xmin(pg_current_snapshot())::text::bigint END
      FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass
     CROSS JOIN (SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, NULL)) ORDER BY a.attnum) AS columns
                   FROM pg_attribute a
                  WHERE a.attrelid = 'messages.archive_rows'::regclass AND a.attnum > 0 AND NOT a.attisdropped) archive
     WHERE CASE WHEN p.end_at > clock_timestamp() THEN with_open AND pg_relation_size(c.oid) > 0 AND (names IS NULL OR c.relname = ANY (names))
                WHEN names IS NULL THEN p.end_at <= clock_timestamp() - coalesce(older_than, '0')
                ELSE c.relname = ANY (names) END
     ORDER BY p.first_at;
END $$;
COMMENT ON FUNCTION messages.closed_archive_partitions IS
    'The archive partitions that were completed at least older_than ago, or the completed ones among these names, oldest first: their size, an estimate of the messages per page, and the columns of the archive with their types. With with_open also the partitions that have messages and still take more: an export reads only what transactions before before_xid archived there. Names of other partitions are left out. PQ004: bad older_than.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.closed_archive_partition(
    name text, OUT partition regclass, OUT first_at timestamptz, OUT end_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    SELECT p.partition, p.first_at, p.end_at INTO partition, first_at, end_at
      FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass WHERE c.relname = name;
    IF partition IS NULL THEN
        RAISE EXCEPTION 'archive partition % does not exist', coalesce(quote_literal(left(name, 100)), 'NULL')
            USING ERRCODE = 'PQ004', HINT = 'Give one of messages.archive_partitions(), without the schema; not the default partition.';
    END IF;
    IF end_at > clock_timestamp() THEN
        RAISE EXCEPTION 'archive partition % takes messages until %', quote_literal(name), end_at
            USING ERRCODE = 'PQ004', HINT = 'It can be exported and dropped after that.';
    END IF;
END $$;
COMMENT ON FUNCTION messages.closed_archive_partition IS
    'The completed archive partition of this name. PQ004: there is none, or it is not completed.'
    ' [internal]';

CREATE OR REPLACE FUNCTION messages.lock_export(partition text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_try_advisory_xact_lock(p.lock_key, hashtext(lock_export.partition)) FROM messages.archive_policy p
$$;
COMMENT ON FUNCTION messages.lock_export IS
    'Whether no other export works on a partition of the archive: true keeps the others out until the commit.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.archive_checksums(partition text, first_page bigint, end_page bigint)
RETURNS TABLE (queue_name text, result text, date date, rows bigint, md5 text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET work_mem = '64MB' SET max_parallel_workers_per_gather = 0
AS $$
#variable_conflict use_column
DECLARE
    part   record;
    values text;
    line   text;
BEGIN
    SELECT * INTO part FROM messages.closed_archive_partition(archive_checksums.partition);
    -- A long text counts by its md5, so that the text of a range stays far below the gigabyte that a value may have.
    SELECT string_agg(CASE WHEN c.kind IN ('bigint', 'integer', 'smallint') THEN format('a.%1$I', c.name)
                           WHEN c.kind = 'timestamp with time zone' THEN format('(extract(epoch FROM a.%1$I) * 1000000)::bigint AS %1$I', c.name)
                           ELSE format('a.%1$I::text', c.name) END, ', ' ORDER BY c.place),
           string_agg(CASE WHEN c.kind IN ('bigint', 'integer', 'smallint', 'timestamp with time zone') THEN format('b.%I', c.name)
                           ELSE format('coalesce(octet_length(b.%1$I) || ''|'' || CASE WHEN octet_length(b.%1$I) > 1024 THEN md5(b.%1$I) ELSE b.%1$I END, ''|'')', c.name)
                      END, ', ''|'', ' ORDER BY c.place) FILTER (WHERE c.name NOT IN ('queue_name', 'result'))
      INTO values, line
      FROM (SELECT a.attname AS name, format_type(a.atttypid, NULL) AS kind, a.attnum AS place FROM pg_attribute a
             WHERE a.attrelid = 'messages.archive_rows'::regclass AND a.attnum > 0 AND NOT a.attisdropped) c;
    -- Through the table, because the partition may have another owner. OFFSET 0 lets each text be built only once.
    RETURN QUERY EXECUTE format($checksums$
        SELECT b.queue_name, b.result, b.date, count(*), md5(string_agg(concat(%1$s, '|', E'\n'), '' ORDER BY b.place))
          FROM (SELECT %2$s, a.ctid AS place, a.archived_at::date AS date FROM messages.archive_rows a
                 WHERE a.archived_at >= %3$L AND a.archived_at < %4$L AND a.ctid >= '(%5$s,0)' AND a.ctid < '(%6$s,0)' OFFSET 0) b
         GROUP BY b.queue_name, b.result, b.date
        $checksums$, line, values, part.first_at, part.end_at, archive_checksums.first_page, archive_checksums.end_page);
END $$;
COMMENT ON FUNCTION messages.archive_checksums IS
    'For the pages from first_page to before end_page of a closed archive partition: the number of messages of each queue, result and day (UTC), and the md5 of all their columns in physical order. PQ004: no such partition, or not closed.'
    ' [for: pipeline]';

CREATE OR REPLACE FUNCTION messages.drop_archive_partition(partition text, manifest jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET lock_timeout = '500ms'
AS $$
#variable_conflict use_column
DECLARE
    part     record;
    holder   regrole;
    chunk    record;
    covered  bigint := 0;
    versions text;
    before   record;
    after    record;
    again    text := 'Nothing was dropped. Export the partition again and drop it with the new manifest.';
BEGIN
    PERFORM messages.check_read_committed();
    SELECT * INTO part FROM messages.closed_archive_partition(drop_archive_partition.partition);
    SELECT c.relowner::regrole INTO holder FROM pg_class c
     WHERE c.oid = part.partition AND NOT pg_has_role(current_user, c.relowner, 'USAGE');
    IF FOUND THEN
        RAISE EXCEPTION 'archive partition % belongs to role %', quote_literal(drop_archive_partition.partition), holder
            USING ERRCODE = 'PQ015', HINT = format('Nothing was dropped. Its owner can drop it, or hand it over: ALTER TABLE %s OWNER TO %I',
                                                   part.partition, current_user);
    END IF;
    IF manifest ->> 'partition' IS DISTINCT FROM drop_archive_partition.partition
       OR jsonb_typeof(manifest -> 'chunks') IS DISTINCT FROM 'array' OR jsonb_typeof(manifest -> 'files') IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'this is not the manifest of archive partition %', quote_literal(drop_archive_partition.partition)
            USING ERRCODE = 'PQ004', HINT = 'Give the manifest that its export wrote.';
    END IF;
    IF EXISTS (SELECT FROM jsonb_array_elements(manifest -> 'files') f WHERE f -> 'md5' IS NULL) THEN
        RAISE EXCEPTION 'the manifest of archive partition % does not say what its files have', quote_literal(drop_archive_partition.partition)
            USING ERRCODE = 'PQ004', HINT = 'Nothing was dropped. An export with drop reads the files back and adds the md5 of each.';
    END IF;
    -- A change of a row makes a new version of it: another place or another transaction.
    versions := format('SELECT count(*) AS rows, bit_xor(hashtidextended(a.ctid, a.xmin::text::bigint)) AS hash
                          FROM messages.archive_rows a WHERE a.archived_at >= %L AND a.archived_at < %L', part.first_at, part.end_at);
    EXECUTE versions INTO before;
    FOR chunk IN
        SELECT c.* FROM jsonb_to_recordset(manifest -> 'chunks') AS c (number bigint, first_page bigint, end_page bigint) ORDER BY c.first_page
    LOOP
        IF chunk.first_page <> covered OR chunk.end_page <= covered THEN
            RAISE EXCEPTION 'the manifest of archive partition % does not cover page %', quote_literal(drop_archive_partition.partition), covered
                USING ERRCODE = 'PQ013', HINT = again;
        END IF;
        covered := chunk.end_page;
        PERFORM FROM messages.archive_checksums(drop_archive_partition.partition, chunk.first_page, chunk.end_page) c
           FULL JOIN (SELECT f.* FROM jsonb_to_recordset(manifest -> 'files') AS f
                      (chunk bigint, queue_name text, result text, date date, rows bigint, md5 text) WHERE f.chunk = chunk.number) f
               USING (queue_name, result, date)
          WHERE c.rows IS DISTINCT FROM f.rows OR c.md5 IS DISTINCT FROM f.md5;
        IF FOUND THEN
            RAISE EXCEPTION 'archive partition % differs from its manifest in the pages from % to before %',
                quote_literal(drop_archive_partition.partition), chunk.first_page, chunk.end_page USING ERRCODE = 'PQ013', HINT = again;
        END IF;
    END LOOP;
    -- Other sessions can write until here, and read until the DROP: from here on no row of the partition is changed or resolved.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', part.partition);
    EXECUTE versions INTO after;
    IF after IS DISTINCT FROM before THEN
        RAISE EXCEPTION 'archive partition % changed while it was compared', quote_literal(drop_archive_partition.partition)
            USING ERRCODE = 'PQ013', HINT = again;
    END IF;
    IF covered * current_setting('block_size')::bigint < pg_relation_size(part.partition) THEN
        RAISE EXCEPTION 'the manifest of archive partition % does not cover page %', quote_literal(drop_archive_partition.partition), covered
            USING ERRCODE = 'PQ013', HINT = again;
    END IF;
    IF EXISTS (SELECT FROM messages.dead_message d WHERE d.archived_at >= part.first_at AND d.archived_at < part.end_at) THEN
        RAISE EXCEPTION 'archive partition % has open dead messages', quote_literal(drop_archive_partition.partition)
            USING ERRCODE = 'PQ014', HINT = 'Nothing was dropped. Requeue or dismiss them, then export and drop it again.';
    END IF;
    PERFORM messages.drop_and_record_partition(part.partition);
    PERFORM messages.set_archive_begin();
    RETURN after.rows;
END $$;
COMMENT ON FUNCTION messages.drop_archive_partition IS
    'Drops a closed archive partition if the manifest of its export covers and equals it, by the md5 of what was read back from each of its files; returns how many messages it had. 55P03: it is in use, try again. PQ004: no such partition, not closed, not its manifest, or an isolation level other than read committed. PQ013: it differs from the manifest. PQ014: it has open dead messages. PQ015: it belongs to another role.'
    ' [for: pipeline]';
