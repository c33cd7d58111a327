SELECT coalesce(array_agg(msg_id), '{}') AS ids FROM pgmq.read_grouped_rr('bench', 300, :batch) \gset
SELECT count(*) FROM pgmq.archive('bench', :ids::bigint[]);
