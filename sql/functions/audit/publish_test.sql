CREATE OR REPLACE FUNCTION messages.publish_test(queue_name text, message jsonb, reference text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id bigint := messages.publish(publish_test.queue_name, publish_test.message, reference => publish_test.reference);
BEGIN
    PERFORM messages.record_audit('publish_test', publish_test.queue_name, jsonb_build_object('reference', publish_test.reference), 1);
    RETURN id;
END $$;
COMMENT ON FUNCTION messages.publish_test(text, jsonb, text) IS
    'Publishes one message by hand: an entry of the audit, without the body. Returns its id. Errors as in publish.';
