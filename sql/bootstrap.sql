-- What must exist before the first migration: the schema, the record of what was applied, and what migrations call.
DO $$
BEGIN
    -- IF NOT EXISTS would ask for CREATE on the database even where there is nothing to create.
    IF to_regnamespace('messages') IS NULL THEN
        CREATE SCHEMA messages;
    -- Whatever lies in it: a table, a function, a type.
    ELSIF EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'messages'::regnamespace AND deptype = 'n')
      -- Only the schema of a release has this column.
      AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('messages.maintenance_run') AND attname = 'server') THEN
        RAISE EXCEPTION 'schema messages of database % is not ours, or older than the first release', quote_ident(current_database())
            USING ERRCODE = 'PQ019', HINT = 'Dump what you need and drop the schema, or install in another database.';
    END IF;
EXCEPTION
    WHEN duplicate_schema OR unique_violation THEN
        NULL;                              -- another session that installs was faster, and has committed
    WHEN lock_not_available THEN
        RAISE EXCEPTION 'another session installs the schema' USING ERRCODE = 'PQ016',
            HINT = 'Nothing was changed. Install again when it has ended: it is an open transaction in pg_stat_activity.';
END $$;

CREATE TABLE IF NOT EXISTS messages.schema_migration (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- One session installs at a time; the others wait, and then find nothing to do. Only a role that may write to this table can take the lock.
-- A maintenance run ends first: it reads the views that the installation replaces, and locks the row that install_cron() writes.
DO $$
DECLARE
    what text := 'table messages.schema_migration';
BEGIN
    LOCK TABLE ONLY messages.schema_migration IN SHARE ROW EXCLUSIVE MODE;
    what := 'maintenance';
    IF to_regclass('messages.maintenance_run') IS NOT NULL THEN
        PERFORM FROM messages.maintenance_run FOR NO KEY UPDATE;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION '% is in use', what USING ERRCODE = 'PQ016',
        HINT = 'Nothing was changed. Install again when that transaction has ended: SELECT pid, application_name, xact_start FROM pg_stat_activity WHERE xact_start < now() - interval ''1 s'' ORDER BY 3';
END $$;
REVOKE ALL ON SCHEMA messages FROM PUBLIC;
COMMENT ON SCHEMA messages IS 'Message queue: publish, lease, archive. See sql/README.md of airflow-provider-pgqueue.';
COMMENT ON TABLE messages.schema_migration IS 'One row for each migration that was applied to this schema.';
COMMENT ON COLUMN messages.schema_migration.version IS 'Number of the migration file.';
COMMENT ON COLUMN messages.schema_migration.name IS 'Name of the migration file, without the number and the ending.';
COMMENT ON COLUMN messages.schema_migration.applied_at IS 'When it was applied.';
