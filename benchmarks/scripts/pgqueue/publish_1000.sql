SELECT count(*) FROM messages.publish_batch('bench', (SELECT jsonb_agg(:body::jsonb) FROM generate_series(1, :batch)));
