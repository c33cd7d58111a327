-- Whether no other export works on a partition: a lock of this transaction, which may then last for hours.
SELECT pg_try_advisory_xact_lock(hashtextextended('messages.export ' || %s, 0))
  FROM set_config('idle_in_transaction_session_timeout', '0', true)
