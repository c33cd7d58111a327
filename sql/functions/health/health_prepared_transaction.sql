CREATE OR REPLACE FUNCTION messages.health_prepared_transaction(held_for interval) RETURNS TABLE (severity text, finding text, fix text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN oldest.age > held_for * 12 THEN 'critical' WHEN oldest.age > held_for THEN 'warning' ELSE 'ok' END,
           CASE WHEN oldest.gid IS NULL THEN 'no prepared transaction'
                ELSE format('prepared transaction %L of %s waits for its COMMIT PREPARED for %s and holds back VACUUM; transactions since: %s',
                            oldest.gid, oldest.owner, date_trunc('second', oldest.age), oldest.transactions) END,
           CASE WHEN oldest.age > held_for THEN format('SELECT * FROM pg_prepared_xacts WHERE gid = %L -- then COMMIT PREPARED or ROLLBACK PREPARED, as whoever prepared it decides', oldest.gid) END
      FROM (VALUES (true)) AS one (row)
      LEFT JOIN LATERAL (
        SELECT p.gid, p.owner, clock_timestamp() - p.prepared AS age, age(p.transaction) AS transactions
          FROM pg_prepared_xacts p WHERE p.database = current_database() ORDER BY p.prepared LIMIT 1) oldest ON true
$$;
COMMENT ON FUNCTION messages.health_prepared_transaction(interval) IS
    'A check of health(). The oldest prepared transaction of this database.';
