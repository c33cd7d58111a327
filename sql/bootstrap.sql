-- What must exist before the first migration: the schema and the record of what was applied.
DO $$
BEGIN
    -- IF NOT EXISTS would ask for CREATE on the database even where there is nothing to create.
    IF to_regnamespace('messages') IS NULL THEN
        CREATE SCHEMA messages;
    END IF;
    -- A function that a migration drops and that is created again is granted again: grants.sql.
    PERFORM set_config('messages.kept_grants', coalesce((
        SELECT jsonb_agg(DISTINCT jsonb_build_object('grantee', r.rolname, 'proname', p.proname))
          FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
         WHERE p.pronamespace = to_regnamespace('messages') AND a.grantee <> p.proowner
           AND r.rolname <> ALL (ARRAY['messages_publisher', 'messages_consumer', 'messages_observer', 'messages_upkeep',
                                       'messages_admin', 'messages_raw', 'messages_reader', 'messages_pipeline', 'messages_limited', 'messages_owner']))::text, '[]'), true);
END $$;
REVOKE ALL ON SCHEMA messages FROM PUBLIC;
COMMENT ON SCHEMA messages IS 'Message queue: publish, lease, archive. See sql/README.md of airflow-provider-pgqueue.';

CREATE TABLE IF NOT EXISTS messages.schema_migration (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE messages.schema_migration IS 'One row for each migration that was applied to this schema.';
COMMENT ON COLUMN messages.schema_migration.version IS 'Number of the migration file.';
COMMENT ON COLUMN messages.schema_migration.name IS 'Name of the migration file, without the number and the ending.';
COMMENT ON COLUMN messages.schema_migration.applied_at IS 'When it was applied.';
