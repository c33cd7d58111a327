-- Where the archive as a log ends on this server, and before which place messages were removed of it.
SELECT horizon, gone_before_xid FROM messages.archive_log_end({}, {}::text[])
