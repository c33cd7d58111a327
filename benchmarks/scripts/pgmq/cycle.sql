SELECT count(*) FROM pgmq.send_batch('bench', :ten_in_array::jsonb[]);
SELECT array_agg(msg_id) AS ids FROM pgmq.read('bench', 300, 10) \gset
SELECT count(*) FROM pgmq.archive('bench', :ids::bigint[]);
