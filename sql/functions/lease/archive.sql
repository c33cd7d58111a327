CREATE OR REPLACE FUNCTION messages.archive(
    lock_token uuid,
    ids        bigint[],
    result     text  DEFAULT 'success',
    details    text  DEFAULT NULL,
    handled_by text  DEFAULT NULL,
    outcomes   jsonb DEFAULT NULL,
    output     jsonb DEFAULT NULL,
    failure    jsonb DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    finished record;
BEGIN
    finished := messages.finish(archive.lock_token, archive.ids, archive.result, archive.details, archive.handled_by,
                                archive.outcomes, archive.output, archive.failure);
    IF finished.entered <> '{}' THEN
        PERFORM messages.ring_for(finished.queue_name, finished.entered[1]);
    END IF;
    RETURN QUERY SELECT unnest(finished.done);
END $$;
COMMENT ON FUNCTION messages.archive(uuid, bigint[], text, text, text, jsonb, jsonb, jsonb) IS
    'Finishes leased messages and returns the ids; an id that is missing was lost. outcomes {"id": {"result", "details", "output", "failure"}} overrides these for single messages. PQ004: bad result, or an output or failure that is too large; 55P03: another transaction has one of them for more than three seconds.';
