-- Whether the schema is from before the first release, as sql/pre_release.sql says.
SELECT md5(string_agg(format('%I.%I', c.relname, a.attname), ',' ORDER BY format('%I.%I', c.relname, a.attname) COLLATE "C"))
       IS DISTINCT FROM '532453f646d7677398130ebcaecdfc37'
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = to_regnamespace('messages')
   AND c.relname = ANY ('{dead_message,dispatch,lane,message,message_archive,queue,timer}')
