CREATE OR REPLACE FUNCTION messages.record_audit(action text, queue_name text, arguments jsonb, affected bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO messages.audit (action, queue_name, arguments, affected)
    VALUES (record_audit.action, record_audit.queue_name, jsonb_strip_nulls(record_audit.arguments), record_audit.affected)
$$;
COMMENT ON FUNCTION messages.record_audit(text, text, jsonb, bigint) IS
    'Writes an entry of the audit for this login, in its transaction.';
