SELECT (array_agg(lock_token))[1] AS token, array_agg(id) AS ids FROM set_config('synchronous_commit', 'off', true), messages.lease('bench', :batch) \gset
SELECT count(*) FROM messages.archive(:token, :ids);
