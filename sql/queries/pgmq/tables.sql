-- PGMQ writes the name in small letters, and some versions as it is.
SELECT (SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace('pgmq') AND c.relkind IN ('r', 'p')
           AND c.relname IN (kind.prefix || %(name)s::text, lower(kind.prefix || %(name)s::text)) ORDER BY c.relname = kind.prefix || %(name)s::text DESC LIMIT 1)
  FROM (VALUES ('q_'), ('a_')) AS kind (prefix)
