-- What verbs.lease_policy returns, as core.consumer.intake reads it.
SELECT lease_for, handler_timeout, counts_leases, limits_rate FROM messages.lease_policy(queue_name => $1::text)
