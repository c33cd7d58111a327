CREATE OR REPLACE FUNCTION messages.planned_messages(relation regclass, queue_name text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (c.reltuples / greatest(c.relpages, 1) * (pg_relation_size(c.oid) / current_setting('block_size')::integer)
            * s.most_common_freqs[array_position(s.most_common_vals::text::text[], planned_messages.queue_name)])::bigint
      FROM pg_class c JOIN pg_stats s ON s.schemaname = 'messages' AND s.tablename = c.relname AND s.attname = 'queue_name'
     WHERE c.oid = planned_messages.relation AND c.reltuples > 0
$$;
COMMENT ON FUNCTION messages.planned_messages(regclass, text) IS
    'How many messages of a queue messages.message_rows or messages.dead_message has according to the statistics of the planner, which the last ANALYZE wrote; NULL if they do not know the queue.';
