CREATE OR REPLACE FUNCTION messages.run_archived(
    run_id text,
    OUT success      bigint,
    OUT rejected     bigint,
    OUT failed       bigint,
    OUT lock_expired bigint,
    OUT seconds      double precision,
    OUT worked       double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    began  timestamptz;
    holder text := messages.run_holder(run_archived.run_id);
BEGIN
    SELECT r.started_at INTO began FROM messages.pipeline_run r WHERE r.started_by = session_user AND r.run_id = run_archived.run_id;
    IF began IS NULL THEN
        RAISE EXCEPTION 'there is no run %', quote_literal(left(run_archived.run_id, 250)) USING ERRCODE = 'PQ004',
            HINT = 'Begin it: SELECT messages.begin_run(run_id, pipeline)';
    END IF;
    SELECT count(*) FILTER (WHERE a.result = 'success'), count(*) FILTER (WHERE a.result = 'rejected'),
           count(*) FILTER (WHERE a.result = 'failed'), count(*) FILTER (WHERE a.result = 'lock_expired'),
           extract(epoch FROM clock_timestamp() - began), coalesce(extract(epoch FROM max(a.archived_at) - min(a.leased_at)), 0)
      INTO success, rejected, failed, lock_expired, seconds, worked
      FROM messages.archive_rows a
     -- No space may follow: the name of one run may be the beginning of another's.
     WHERE a.archived_at >= began AND starts_with(a.handled_by, holder)
       AND strpos(substr(a.handled_by, length(holder) + 1), ' ') = 0;
END $$;
COMMENT ON FUNCTION messages.run_archived(text) IS
    'How many messages a run of a pipeline has archived since it began, by result, how many seconds ago it began, and how many it worked: from its first lease to its last result. PQ004: no such run.';
