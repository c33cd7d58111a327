CREATE OR REPLACE FUNCTION messages.archive_and_lease(
    lock_token   uuid,
    ids          bigint[],
    outcomes     jsonb,
    queue_name   text,
    max_messages integer  DEFAULT 1,
    lease_for    interval DEFAULT NULL,
    locked_by    text     DEFAULT NULL
) RETURNS TABLE (leased messages.leased_message, archived bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    finished record;
BEGIN
    finished := messages.finish(archive_and_lease.lock_token, archive_and_lease.ids, 'success', NULL, archive_and_lease.locked_by,
                                archive_and_lease.outcomes, NULL, NULL);
    archived := CASE WHEN finished.done @> archive_and_lease.ids THEN NULL ELSE coalesce(finished.done, '{}') END;
    RETURN QUERY SELECT l, archived FROM messages.lease(archive_and_lease.queue_name, archive_and_lease.max_messages,
                                                        archive_and_lease.lease_for, archive_and_lease.locked_by) l;
    IF NOT FOUND THEN
        RETURN NEXT;
    END IF;
    -- Others wait only for what this call has let in and does not lease itself.
    IF EXISTS (SELECT FROM messages.message_rows m WHERE m.id = ANY (finished.entered) AND m.lock_expires_at IS NULL) THEN
        PERFORM messages.ring_for(finished.queue_name, finished.entered[1]);
    END IF;
END $$;
COMMENT ON FUNCTION messages.archive_and_lease(uuid, bigint[], jsonb, text, integer, interval, text) IS
    'Archives the messages of a lease, as success or as outcomes say, and leases the next, in one call. archived is NULL if all were archived, else it has the ids of those that were, in one row without a message if none was leased. What this frees of a group can be leased at once. Errors as in archive and lease.';
