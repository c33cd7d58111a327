-- The newest migration, and the oldest version whose packages may work next to it.
SELECT messages.latest_migration(), messages.schema_version()
