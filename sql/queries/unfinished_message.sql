SELECT * FROM messages.message_overview WHERE id = %(id)s
