CREATE OR REPLACE FUNCTION messages.lease_policy(queue_name text)
RETURNS TABLE (lease_for interval, handler_timeout interval, counts_leases boolean, limits_rate boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM messages.check_queue(lease_policy.queue_name, 'consume');
    RETURN QUERY SELECT q.lease_for, q.handler_timeout, q.max_leased IS NOT NULL, q.rate_limit IS NOT NULL
      FROM messages.queue q WHERE q.queue_name = lease_policy.queue_name COLLATE "default";
END $$;
COMMENT ON FUNCTION messages.lease_policy(text) IS
    'How long a lease of the queue lasts, and how long a handler may take for a message (NULL forever), unless the consumer says otherwise; and whether it has a max_leased, so that leases wait for one another, and a rate. PQ001: unknown queue.';
