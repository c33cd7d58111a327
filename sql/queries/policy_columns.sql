SELECT a.attname AS name, format_type(a.atttypid, NULL) AS type, replace(col_description(a.attrelid, a.attnum), 'NULL', 'empty') AS description
  FROM pg_attribute a
 WHERE a.attrelid = 'messages.queue'::regclass AND a.attnum > 0 AND NOT a.attisdropped
