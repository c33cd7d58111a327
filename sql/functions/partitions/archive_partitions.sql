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
COMMENT ON FUNCTION messages.archive_partitions() IS
    'The partitions of the archive, oldest first, each for the time from first_at to before end_at; without the default partition.';
