-- How many messages go with the schema: unfinished, and archived.
SELECT (SELECT count(*) FROM messages.message), (SELECT count(*) FROM messages.message_archive)
