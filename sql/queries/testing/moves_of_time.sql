-- A statement for each table, which moves its times into the past by %(by)s. The archive stays where it is: archived_at
-- names the partition of a row, and a partition has bounds.
SELECT format('UPDATE messages.%I SET %s', c.relname, string_agg(format('%1$I = %1$I - %%(by)s', a.attname), ', '))
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'r' AND (NOT c.relispartition OR c.relname = 'message_rows')
   AND c.relname NOT IN ('archive_policy', 'schema_migration')
   AND a.atttypid = 'timestamptz'::regtype AND a.attname <> 'archived_at' AND NOT a.attisdropped
 GROUP BY c.relname ORDER BY c.relname
