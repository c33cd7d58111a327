-- In lines here, because a program that reads a number and writes it again may round it.
SELECT f.id, f.bytes, CASE WHEN f.bytes <= %(largest)s THEN left(jsonb_pretty(f.message), %(longest)s + 1) END AS body, jsonb_pretty(f.headers) AS headers
  FROM (SELECT m.id, m.message, m.headers, pg_column_size(m.message) AS bytes FROM messages.message m WHERE m.id = ANY (%(ids)s)
        UNION ALL
        SELECT a.id, a.message, a.headers, pg_column_size(a.message) FROM messages.message_archive a WHERE a.id = ANY (%(ids)s)) f
