CREATE OR REPLACE VIEW messages.batch_overview WITH (security_barrier) AS
SELECT b.queue_name, b.batch, b.into_queue, b.expected, b.closed_at, b.ended_at, b.end_id, b.last_error,
       CASE WHEN b.ended_at IS NULL THEN (
           SELECT count(*) FROM (SELECT FROM messages.message_rows m
                                  WHERE m.queue_name = b.queue_name AND m.headers ? 'batch' AND left(m.headers ->> 'batch', 200) = b.batch
                                  LIMIT 10000) counted) END AS unfinished
  FROM messages.batch b
 WHERE (SELECT r.everything FROM messages.session_reach r)
    OR b.queue_name IN (SELECT unnest(r.queue_names) FROM messages.session_reach r);
COMMENT ON VIEW messages.batch_overview IS 'Batches that were closed, also the ended ones of the last 30 days. Open ones have no ended_at; unfinished is how many of their messages wait or are leased, counted up to 10,000; last_error is why the end could not be published.';
