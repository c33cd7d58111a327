-- Whether no other export works on a partition: a lock of this transaction, which may then last for hours.
SELECT pg_try_advisory_xact_lock(hashtextextended('messages.export ' || %s, 0))
  FROM (SELECT count(set_config(name, '0', true)) FROM pg_settings
         WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')) AS unlimited
