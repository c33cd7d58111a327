SELECT left(m.message::text, %(longest)s + 1) AS body, m.headers::text AS headers FROM messages.message m WHERE m.id = %(id)s
UNION ALL
SELECT left(a.message::text, %(longest)s + 1), a.headers::text FROM messages.message_archive a WHERE a.id = %(id)s
LIMIT 1
