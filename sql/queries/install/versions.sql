-- The newest migration, and the oldest version whose packages may work beside it.
SELECT messages.latest_migration(), messages.schema_version()
