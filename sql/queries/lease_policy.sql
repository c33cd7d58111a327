-- The columns of verbs.lease_policy, as core.consumer.loop reads them.
SELECT lease_for, handler_timeout, counts_leases, limits_rate FROM messages.lease_policy(queue_name => $1::text)
