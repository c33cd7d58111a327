CREATE OR REPLACE FUNCTION messages.requeued_results(
    remedied_by  text,
    max_messages integer,
    OUT requeued   bigint,
    OUT finished   bigint,
    OUT died_again bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT messages.check_number('max_messages', requeued_results.max_messages, 0, 2147483647);
    SELECT count(*), count(again.id), count(again.id) FILTER (WHERE again.result NOT IN ('success', 'cancelled'))
      FROM (SELECT a.requeued_as
              FROM messages.archive_rows a
             WHERE a.remedied_by = requeued_results.remedied_by AND a.remedy = 'requeued'
               AND ((SELECT r.everything FROM messages.session_reach r)
                    OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
             ORDER BY a.remedied_at, a.id LIMIT requeued_results.max_messages) first
      LEFT JOIN messages.archive_rows again ON again.id = first.requeued_as
$$;
COMMENT ON FUNCTION messages.requeued_results(text, integer) IS
    'What became of the first max_messages that were requeued under this remedied_by: how many there are, how many of them are finished, and how many died again. PQ004: a negative number.';
