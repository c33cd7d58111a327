-- The numbers of the migrations that were applied.
SELECT version FROM messages.schema_migration
