WITH gone AS (
    DELETE FROM raw WHERE ctid = ANY (ARRAY(SELECT ctid FROM raw ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED))
    RETURNING id, created_at, message),
archived AS (INSERT INTO raw_archive SELECT id, created_at, message FROM gone RETURNING id)
SELECT count(*) FROM archived;
