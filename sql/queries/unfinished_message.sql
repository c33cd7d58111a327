-- A message that is not finished, without its body.
SELECT * FROM messages.message_overview WHERE id = %(id)s
