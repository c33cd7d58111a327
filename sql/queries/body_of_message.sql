-- In lines here, because a program that reads a number and writes it again may round it.
SELECT left(jsonb_pretty(m.message), %(longest)s + 1) AS body, jsonb_pretty(m.headers) AS headers FROM messages.message m WHERE m.id = %(id)s
UNION ALL
SELECT left(jsonb_pretty(a.message), %(longest)s + 1), jsonb_pretty(a.headers) FROM messages.message_archive a WHERE a.id = %(id)s
LIMIT 1
