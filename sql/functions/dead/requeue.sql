CREATE OR REPLACE FUNCTION messages.requeue(
    lock_token  uuid,
    ids         bigint[],
    messages    jsonb    DEFAULT NULL,
    delay       interval DEFAULT '0',
    remedied_by text     DEFAULT NULL
) RETURNS TABLE (id bigint, new_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_duration('delay', requeue.delay, '0', '366 days');
    PERFORM messages.check_length('remedied_by', requeue.remedied_by, 0, 600);     -- what fits into an index, of characters of any length
    RETURN QUERY
    WITH mine AS (
        DELETE FROM messages.dead_message d
         WHERE d.id = ANY (requeue.ids) AND d.lock_token = requeue.lock_token AND d.lock_expires_at > clock_timestamp()
        RETURNING d.id, d.archived_at, d.locked_by),
    published AS (
        INSERT INTO messages.message AS m (queue_name, message, priority, visible_at, headers, reference, topic, group_key,
                                            requeued_from, requeues)
        SELECT a.queue_name, coalesce(requeue.messages -> a.id::text, a.message), a.priority,
               clock_timestamp() + coalesce(requeue.delay, '0'), a.headers, a.reference, a.topic, a.group_key, a.id, least(a.requeues + 1, 32767)
          FROM mine JOIN messages.archive_rows a ON a.id = mine.id AND a.archived_at = mine.archived_at
         ORDER BY a.id
        RETURNING m.id AS new_id, m.requeued_from)
    UPDATE messages.archive_rows a
       SET remedy = 'requeued', remedied_at = clock_timestamp(), requeued_as = p.new_id,
           remedied_by = coalesce(requeue.remedied_by, left(mine.locked_by, 600))
      FROM mine JOIN published p ON p.requeued_from = mine.id
     WHERE a.id = mine.id AND a.archived_at = mine.archived_at
    RETURNING a.id, a.requeued_as;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('a dead message of this lease');
END $$;
COMMENT ON FUNCTION messages.requeue(uuid, bigint[], jsonb, interval, text) IS
    'Publishes leased dead messages again under new ids, with a new body where messages {"id": body} has one, and records it in the archive. An id that is missing was lost. PQ004: bad delay or remedied_by; PQ016: another transaction has a dead message of this lease for more than three seconds.';
