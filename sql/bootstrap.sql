-- What must exist before the first migration: the schema, the record of what was applied, and what migrations call.
DO $$
BEGIN
    -- IF NOT EXISTS would ask for CREATE on the database even where there is nothing to create.
    IF to_regnamespace('messages') IS NULL THEN
        CREATE SCHEMA messages;
    END IF;
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
