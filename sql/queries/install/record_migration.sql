-- Records that a migration was applied.
INSERT INTO messages.schema_migration (version, name) VALUES (%s, %s)
