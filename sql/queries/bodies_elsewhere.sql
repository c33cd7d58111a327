-- The names of all bodies that messages point to, waiting or archived, in one snapshot. A pointer is small: no other body is read.
SELECT CASE WHEN pg_column_size(m.message) < 1000 THEN m.message #>> '{pgqueue_body,name}' END AS name
  FROM (SELECT w.message FROM messages.message w UNION ALL SELECT a.message FROM messages.message_archive a) m
 WHERE CASE WHEN pg_column_size(m.message) < 1000 THEN m.message #>> '{pgqueue_body,name}' END IS NOT NULL
