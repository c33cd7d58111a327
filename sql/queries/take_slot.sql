-- Whether a slot of a job was free, which this transaction then has. A host that vanishes must not keep its slot
-- for the two hours of the system's default.
SELECT slot.taken,
       CASE WHEN slot.taken THEN set_config('tcp_keepalives_idle', '10', true) END,
       CASE WHEN slot.taken THEN set_config('tcp_keepalives_interval', '5', true) END,
       CASE WHEN slot.taken THEN set_config('tcp_keepalives_count', '3', true) END,
       CASE WHEN slot.taken THEN set_config('application_name', 'pgqueue spark publish', true) END
  FROM pg_try_advisory_xact_lock(
           hashtextextended(concat_ws('.', 'messages.publish_stage', session_user, %(stage_id)s::text, %(slot)s), 0)) AS slot (taken)
