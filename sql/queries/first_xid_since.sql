-- The number of the first transaction that archived at a moment or later.
SELECT min(xid) FROM messages.message_archive WHERE archived_at >= %s
