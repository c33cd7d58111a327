-- Where the archive as a log ends on this server, and what retention has removed of it.
SELECT horizon, begins_at, gone_before_xid FROM messages.archive_log_end()
