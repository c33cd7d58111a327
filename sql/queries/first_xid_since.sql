-- The number of the first transaction that archived at a time or later.
SELECT min(xid) FROM messages.message_archive WHERE archived_at >= %s
