-- A fresh schema needs the archive partitions of the coming months, and the queue of a plain INSERT. A dump that was restored on
-- another server continues here.
DO $$
BEGIN
    PERFORM messages.make_archive_partitions();
    PERFORM messages.create_queue('default');
    PERFORM messages.begin_history() WHERE NOT EXISTS (SELECT FROM messages.history_progress);
    PERFORM messages.adopt_copy() FROM messages.maintenance_run u CROSS JOIN pg_control_system() c WHERE u.server <> c.system_identifier;
    UPDATE messages.maintenance_run u SET server = c.system_identifier FROM pg_control_system() c WHERE u.server IS NULL;
END $$;
