-- The last of the messages that search_messages reads where it has no index; no row if it read all messages.
SELECT a.id FROM messages.archive_overview a WHERE %(after_id)s::bigint IS NULL OR a.id < %(after_id)s ORDER BY a.id DESC OFFSET 99999 LIMIT 1
