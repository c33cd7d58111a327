CREATE OR REPLACE FUNCTION messages.alter_history(
    minutes_for interval DEFAULT NULL,
    hours_for   interval DEFAULT NULL,
    days_for    interval DEFAULT NULL,
    audit_for   interval DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s'
AS $$
#variable_conflict use_column
BEGIN
    -- Only 0 itself is not judged: 1 month -30 days equals it, too.
    PERFORM messages.check_duration('minutes_for', alter_history.minutes_for, '2 hours', '366 days'),
            messages.check_duration('hours_for', alter_history.hours_for, '2 days', '36600 days'),
            messages.check_duration('days_for', CASE WHEN alter_history.days_for::text <> interval '0'::text THEN alter_history.days_for END, '7 days', '36600 days'),
            messages.check_duration('audit_for', CASE WHEN alter_history.audit_for::text <> interval '0'::text THEN alter_history.audit_for END, '1 day', '36600 days');
    UPDATE messages.history_policy p
       SET minutes_for = coalesce(alter_history.minutes_for, p.minutes_for), hours_for = coalesce(alter_history.hours_for, p.hours_for),
           days_for = nullif(coalesce(alter_history.days_for, p.days_for), '0'),
           audit_for = nullif(coalesce(alter_history.audit_for, p.audit_for), '0');
    PERFORM messages.record_audit('alter_history', NULL, jsonb_build_object(
        'minutes_for', alter_history.minutes_for, 'hours_for', alter_history.hours_for,
        'days_for', alter_history.days_for, 'audit_for', alter_history.audit_for), NULL);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    PERFORM messages.raise_in_use('the policy of the history');
END $$;
COMMENT ON FUNCTION messages.alter_history(interval, interval, interval, interval) IS
    'Changes how long minutes, hours and days of the history and the audit are kept; NULL keeps a value, 0 keeps days or the audit forever. The upkeep deletes what is older. PQ004: out of range; PQ016: another transaction is changing it for more than three seconds.';
