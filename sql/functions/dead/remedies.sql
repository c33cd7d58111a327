CREATE OR REPLACE FUNCTION messages.remedies(ids bigint[]) RETURNS TABLE (id bigint, remedy text, remedied_by text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.id, a.remedy, a.remedied_by
      FROM messages.archive_rows a
     WHERE a.id = ANY (remedies.ids) AND a.remedy IS NOT NULL
       AND ((SELECT r.everything FROM messages.session_reach r)
            OR a.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r))
$$;
COMMENT ON FUNCTION messages.remedies(bigint[]) IS
    'The remedies of dead messages, and who chose them; an id that is missing has no remedy yet.';
