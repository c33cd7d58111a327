SELECT * FROM messages.archive_overview WHERE id = %(id)s
