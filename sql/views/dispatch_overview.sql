CREATE OR REPLACE VIEW messages.dispatch_overview WITH (security_barrier) AS
SELECT dispatch_id, queue_name, dag_id, run_id, on_failure, dispatched_by, ids, opened_at, started_at, seen_at, ended_at,
       result, CASE WHEN (SELECT r.bodies FROM messages.session_reach r)
                 OR queue_name IN (SELECT unnest(r.body_queues) FROM messages.session_reach r) THEN details END AS details,
       CASE WHEN ended_at IS NOT NULL THEN result WHEN started_at IS NULL THEN 'unstarted' ELSE 'running' END AS run_state
  FROM messages.dispatch
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.dispatch_overview IS 'Messages and the DAG runs that they were handed to, also the ended ones of the last 30 days. Open dispatches have no ended_at. seen_at is when Airflow last said that the run is queued or running, or when a dispatcher was about to start it; run_state is what Airflow said: unstarted, running, or how the run ended. Only whoever may read the bodies sees details.';
