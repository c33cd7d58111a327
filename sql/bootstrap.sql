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

CREATE TABLE IF NOT EXISTS messages.release_object (
    kind       text    NOT NULL,
    name       text    NOT NULL,
    definition text    NOT NULL,
    mend       text,
    server     integer NOT NULL,
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE messages.release_object IS 'The objects of the schema as they were at the end of the last installation.';
COMMENT ON COLUMN messages.release_object.kind IS 'table, column, index, trigger, …';
COMMENT ON COLUMN messages.release_object.name IS 'Its name.';
COMMENT ON COLUMN messages.release_object.definition IS 'What it is, or a digest of that.';
COMMENT ON COLUMN messages.release_object.mend IS 'The SQL that makes it again; NULL if the installation does, or nothing can.';
COMMENT ON COLUMN messages.release_object.server IS 'The major version of PostgreSQL, as each may write definitions in its own way.';
