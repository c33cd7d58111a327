CREATE OR REPLACE FUNCTION messages.traffic_kept_since(grain text) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT clock_timestamp() - CASE grain WHEN 'minute' THEN interval '14 days' WHEN 'hour' THEN interval '400 days' END
$$;
COMMENT ON FUNCTION messages.traffic_kept_since(text) IS 'The time from which on traffic of this grain is kept; NULL: forever.';
