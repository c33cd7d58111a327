WITH gone AS (
    DELETE FROM raw WHERE ctid = ANY (ARRAY(SELECT ctid FROM raw ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED))
    RETURNING id, message)
SELECT count(*) FROM gone;
