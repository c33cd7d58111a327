CREATE OR REPLACE FUNCTION messages.drop_or_empty_stage(number bigint, keep_table boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stage regclass := to_regclass(format('messages.publish_stage_%s', drop_or_empty_stage.number));
BEGIN
    IF stage IS NOT NULL THEN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', stage);
        EXECUTE format('%s TABLE %s', CASE WHEN keep_table THEN 'TRUNCATE' ELSE 'DROP' END, stage);
    END IF;
    DELETE FROM messages.publish_stage s WHERE s.number = drop_or_empty_stage.number AND NOT keep_table;
    RETURN true;
EXCEPTION
    -- A task that lost to another attempt, or whose driver died, may still write: do not wait for it.
    WHEN lock_not_available THEN
        UPDATE messages.publish_stage s SET expires_at = clock_timestamp() WHERE s.number = drop_or_empty_stage.number AND NOT keep_table;
        RETURN false;
END $$;
COMMENT ON FUNCTION messages.drop_or_empty_stage(bigint, boolean) IS
    'Drops a staging table, or leaves it to the next upkeep if a task still writes there; with keep_table it only empties it, for the next batch of a stream.';
