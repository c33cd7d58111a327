\set first random(1, 1000000)
SELECT count(*) FROM pgmq.send_batch('bench', array_fill(:body::jsonb, ARRAY[:batch]),
    ARRAY(SELECT jsonb_build_object('x-pgmq-group', 'g' || (:first + n) % :groups) FROM generate_series(1, :batch) n));
