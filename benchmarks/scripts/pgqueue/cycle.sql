SELECT count(*) FROM messages.publish_batch('bench', :ten_bodies);
SELECT (array_agg(lock_token))[1] AS token, array_agg(id) AS ids FROM messages.lease('bench', 10) \gset
SELECT count(*) FROM messages.archive(:token, :ids);
