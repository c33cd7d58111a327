CREATE OR REPLACE FUNCTION messages.drop_stage(stage_id text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(bool_and(messages.drop_or_empty_stage(s.number)), false) FROM (
        SELECT p.number FROM messages.publish_stage p
         WHERE p.made_by = session_user AND p.stage_id = drop_stage.stage_id FOR UPDATE SKIP LOCKED) s
$$;
COMMENT ON FUNCTION messages.drop_stage(text) IS
    'Drops the staging table of a job that will not publish; true if it is gone. While a task still writes there it is left to the upkeep.';
