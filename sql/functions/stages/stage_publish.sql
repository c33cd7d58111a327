CREATE OR REPLACE FUNCTION messages.stage_publish(stage_id text, queue_name text DEFAULT NULL, run_id text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = 'heap' SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
DECLARE
    stage   text;
    grantee name;
BEGIN
    PERFORM messages.check_length('stage_id', stage_publish.stage_id, 1, 250, required => true);
    PERFORM messages.check_queue(stage_publish.queue_name, 'publish') WHERE stage_publish.queue_name IS NOT NULL;
    IF messages.begin_publish_run(stage_publish.run_id, stage_publish.queue_name) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    BEGIN
        INSERT INTO messages.publish_stage AS s (stage_id) VALUES (stage_publish.stage_id)
        ON CONFLICT (made_by, stage_id) DO UPDATE SET expires_at = excluded.expires_at
        RETURNING format('messages.publish_stage_%s', s.number) INTO stage;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        PERFORM messages.raise_in_use(format('stage %L', stage_publish.stage_id), SQLSTATE);
    END;
    IF to_regclass(stage) IS NULL THEN
        -- A row that breaks a rule fails in its own task, which knows its number. No compression: max_body_bytes limits the plain value.
        -- No autovacuum: its lock would be in the way of the DROP.
        EXECUTE format($create$
            CREATE UNLOGGED TABLE %s (
                attempt bigint NOT NULL, message jsonb NOT NULL,
                -- This number is added to visible_at as microseconds.
                ordinal bigint NOT NULL CONSTRAINT ordinal CHECK (ordinal BETWEEN 0 AND 10000000000),
                -- Rows without a column for it have '', and go to the queue of the job.
                queue_name text        DEFAULT '' CONSTRAINT queue_name CHECK (queue_name IS NOT NULL),
                -- The longest text that fits into an index entry even if it cannot be compressed.
                reference  text        CONSTRAINT reference CHECK (octet_length(reference) <= 2600),
                headers    jsonb       CONSTRAINT headers CHECK (jsonb_typeof(headers) = 'object' AND pg_column_size(headers) <= 65536),
                topic      text        CONSTRAINT topic CHECK (topic ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' AND length(topic) <= 255),
                group_key  text        CONSTRAINT group_key CHECK (length(group_key) BETWEEN 1 AND 255),
                dedup_key  text        CONSTRAINT dedup_key CHECK (length(dedup_key) BETWEEN 1 AND 255),
                priority   bigint      CONSTRAINT priority CHECK (priority BETWEEN 0 AND 9),
                visible_at timestamptz CONSTRAINT visible_at CHECK (visible_at <= clock_timestamp() + interval '3660 days'),
                expires_at timestamptz CONSTRAINT expires_at CHECK (expires_at <= clock_timestamp() + interval '3660 days')
            ) WITH (autovacuum_enabled = off)$create$, stage);
        EXECUTE format('ALTER TABLE %s ALTER COLUMN message SET STORAGE EXTERNAL', stage);
        PERFORM messages.keep_private(stage::regclass);
        -- A grant to the login itself would keep it from being dropped.
        SELECT coalesce(min(r.rolname), session_user) INTO grantee FROM pg_roles r
         WHERE r.rolname IN ('messages_admin', 'messages_publisher') AND pg_has_role(session_user, r.oid, 'MEMBER');
        EXECUTE format('GRANT INSERT ON %s TO %I', stage, grantee);
        EXECUTE format('CREATE TRIGGER check_stage_login BEFORE INSERT ON %s FOR EACH STATEMENT EXECUTE FUNCTION messages.check_stage_login(%L)',
                       stage, session_user);
    END IF;
    RETURN stage;
END $$;
COMMENT ON FUNCTION messages.stage_publish(text, text, text) IS
    'Creates or finds the staging table of a job and returns its name, or NULL if the run was published before. This login may INSERT rows under an attempt number of its own; publish_staged() publishes them. The upkeep drops the table a day after the last call. Each login has names of its own. PQ001: unknown queue; PQ004: bad name, or a run that has published to another queue; PQ016: a transaction that made the stage stays open for more than three seconds, or waits for this one.';
