CREATE OR REPLACE FUNCTION messages.record_audit(action text, queue_name text, arguments jsonb, affected bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- Of many ids the number says enough.
    INSERT INTO messages.audit (action, queue_name, arguments, affected)
    SELECT record_audit.action, record_audit.queue_name,
           CASE WHEN jsonb_array_length(given -> 'ids') > 20 THEN given - 'ids' ELSE given END, record_audit.affected
      FROM jsonb_strip_nulls(record_audit.arguments) AS given
$$;
COMMENT ON FUNCTION messages.record_audit(text, text, jsonb, bigint) IS
    'Writes an entry of the audit for this login, in its transaction; leaves out arguments that are NULL, and more than twenty ids.';
