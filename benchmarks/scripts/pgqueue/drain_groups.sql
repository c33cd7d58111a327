SELECT coalesce((array_agg(lock_token))[1], gen_random_uuid()) AS token, coalesce(array_agg(id), '{}') AS ids FROM messages.lease('bench', :batch) \gset
SELECT count(*) FROM messages.archive(:token, :ids);
