CREATE OR REPLACE FUNCTION messages.lock_stage(stage_id text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT to_regclass(format('messages.publish_stage_%s', s.number))::text FROM messages.publish_stage s
             WHERE s.made_by = session_user AND s.stage_id = lock_stage.stage_id FOR UPDATE);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use(format('stage %L', lock_stage.stage_id), SQLSTATE);
END $$;
COMMENT ON FUNCTION messages.lock_stage(text) IS
    'Locks the stage of a job until the commit, and returns the name of its table; NULL if there is none. PQ016: another transaction held it for three seconds, or waits for this one.';
