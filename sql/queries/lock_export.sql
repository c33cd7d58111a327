-- Whether no other export works on a partition: a lock of this transaction, which may then last for hours.
SELECT messages.lock_export(%s)
  FROM (SELECT count(set_config(name, '0', true)) FROM pg_settings
         WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')) AS unlimited
