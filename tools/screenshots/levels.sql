-- Maintenance ran once, and the pictures show a day: the depth of each queue in each minute of it.
ANALYZE messages.history, messages.dead_message;
INSERT INTO messages.history (queue_name, grain, bucket_at)
SELECT '', 'minute', minute FROM generate_series(date_trunc('minute', clock_timestamp() - interval '1 day'), clock_timestamp(), '1 minute') AS minute
ON CONFLICT DO NOTHING;
UPDATE messages.history h
   SET depth = d.depth, depth_max = d.depth, ready = d.depth * 2 / 3, leased = d.depth / 3, delayed = 0,
       dead = d.dead,
       oldest_at = CASE WHEN d.depth > 3 THEN h.bucket_at - interval '1 second' * d.depth END
  FROM (SELECT h.queue_name, h.grain, h.bucket_at, (6 + h.arrivals * 3 * (1.4 + sin(extract(epoch FROM h.bucket_at)::float8 / 6000)) + 8 * random())::bigint AS depth,
               sum(h.failed + h.rejected) OVER (PARTITION BY h.queue_name ORDER BY h.bucket_at) AS dead
          FROM messages.history h WHERE h.grain = 'minute' AND h.queue_name <> '') d
 WHERE h.grain = 'minute' AND d.queue_name = h.queue_name AND d.grain = h.grain AND d.bucket_at = h.bucket_at AND h.depth IS NULL;
