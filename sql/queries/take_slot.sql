-- One of the slots of a job, for this transaction; no row if all are taken. A host that vanishes must not keep its slot
-- for the two hours of the system's default.
SELECT slot, set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true), set_config('application_name', 'pgqueue spark publish', true)
  FROM generate_series(1, %(slots)s) AS slot
 WHERE pg_try_advisory_xact_lock(
           hashtextextended(concat_ws('.', 'messages.publish_stage', session_user, %(stage_id)s::text, slot), 0))
 LIMIT 1
