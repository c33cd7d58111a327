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
    -- Readers continue until here. From here on nobody can change a row of it or give one a remedy.
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
        RAISE EXCEPTION 'archive partition % has dead messages without a remedy', quote_literal(drop_archive_partition.partition)
            USING ERRCODE = 'PQ014', HINT = 'Nothing was dropped. Requeue or dismiss them, then export and drop it again.';
    END IF;
    PERFORM messages.drop_and_record_partition(part.partition);
    PERFORM messages.set_archive_begin();
    RETURN after.rows;
END $$;
COMMENT ON FUNCTION messages.drop_archive_partition(text, jsonb) IS
    'Drops a closed archive partition if the manifest of its export covers and equals it, by the md5 of what was read back from each of its files; returns how many messages it had. 55P03: it is in use, try again. PQ004: no such partition, not closed, not its manifest, or an isolation level other than read committed. PQ013: it differs from the manifest. PQ014: it has dead messages without a remedy. PQ015: it belongs to another role.';
