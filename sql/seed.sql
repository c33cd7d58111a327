-- What a fresh schema needs: the archive partitions of the coming months, and the queue of a plain INSERT.
DO $$
BEGIN
    PERFORM messages.make_archive_partitions();
    PERFORM messages.create_queue('default');
    PERFORM messages.begin_history() WHERE NOT EXISTS (SELECT FROM messages.history_progress);
END $$;
