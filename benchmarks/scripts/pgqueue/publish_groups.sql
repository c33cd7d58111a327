\set first random(1, 1000000)
SELECT count(*) FROM messages.publish_batch('bench', (SELECT jsonb_agg(:body::jsonb) FROM generate_series(1, :batch)),
    group_keys => ARRAY(SELECT 'g' || (:first + n) % :groups FROM generate_series(1, :batch) n));
