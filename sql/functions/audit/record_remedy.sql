CREATE OR REPLACE FUNCTION messages.record_remedy(action text, queue_name text, affected bigint, arguments jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A program that looks every minute and finds nothing fills no table; of thousands of ids the number says enough.
    IF record_remedy.affected > 0 THEN
        PERFORM messages.record_audit(record_remedy.action, record_remedy.queue_name,
            CASE WHEN jsonb_typeof(arguments -> 'ids') = 'array' AND jsonb_array_length(arguments -> 'ids') > 20
                 THEN arguments - 'ids' ELSE arguments END, record_remedy.affected);
    END IF;
END $$;
COMMENT ON FUNCTION messages.record_remedy(text, text, bigint, jsonb) IS
    'Writes an entry of the audit for messages that were requeued, dismissed or released by one call; none if there were none.';
