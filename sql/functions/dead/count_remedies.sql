CREATE OR REPLACE FUNCTION messages.count_remedies(remedied_by text, OUT requeued bigint, OUT dismissed bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FILTER (WHERE a.remedy = 'requeued'), count(*) FILTER (WHERE a.remedy = 'dismissed')
      FROM messages.archive_rows a
     WHERE a.remedied_by = count_remedies.remedied_by
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
$$;
COMMENT ON FUNCTION messages.count_remedies(text) IS
    'How many dead messages were requeued and dismissed under this remedied_by.';
