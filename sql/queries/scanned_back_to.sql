-- The last of the messages that search_messages looks at where it has no index: none if those were all.
SELECT a.id FROM messages.archive_overview a WHERE %(after_id)s::bigint IS NULL OR a.id < %(after_id)s ORDER BY a.id DESC OFFSET 99999 LIMIT 1
