CREATE OR REPLACE FUNCTION messages.parse_cron(
    cron           text,
    OUT minutes    integer[],
    OUT hours      integer[],
    OUT days       integer[],
    OUT months     integer[],
    OUT weekdays   integer[],
    OUT either_day boolean,
    OUT every_hour boolean
)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    fields text[] := regexp_split_to_array(CASE lower(btrim(left(cron, 501)))
        WHEN '@hourly'   THEN '0 * * * *'
        WHEN '@daily'    THEN '0 0 * * *'
        WHEN '@midnight' THEN '0 0 * * *'
        WHEN '@weekly'   THEN '0 0 * * 0'
        WHEN '@monthly'  THEN '0 0 1 * *'
        WHEN '@yearly'   THEN '0 0 1 1 *'
        WHEN '@annually' THEN '0 0 1 1 *'
        ELSE btrim(left(cron, 501), E' \t') END, E'[ \t]+');
BEGIN
    IF cron IS NULL OR cardinality(fields) <> 5 OR length(cron) > 500 THEN
        RAISE EXCEPTION 'cron is %', coalesce(quote_literal(left(cron, 100)), 'NULL')
            USING ERRCODE = 'PQ004',
                  HINT = 'Give five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly, @monthly, @yearly.';
    END IF;
    minutes := messages.parse_cron_field(cron, 'minute', fields[1], 0, 59);
    hours := messages.parse_cron_field(cron, 'hour', fields[2], 0, 23);
    days := messages.parse_cron_field(cron, 'day of month', fields[3], 1, 31);
    months := messages.parse_cron_field(cron, 'month', fields[4], 1, 12, '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}');
    weekdays := messages.parse_cron_field(cron, 'day of week', fields[5], 0, 7, '{SUN,MON,TUE,WED,THU,FRI,SAT}');
    weekdays := ARRAY(SELECT DISTINCT weekday % 7 FROM unnest(weekdays) AS weekday);
    -- As in Vixie cron and pg_cron: if a day field begins with a star, a day has to match both fields; else one is enough.
    either_day := fields[3] NOT LIKE '*%' AND fields[5] NOT LIKE '*%';
    every_hour := fields[2] LIKE '*%';
END $$;
COMMENT ON FUNCTION messages.parse_cron(text) IS
    'What a cron expression means; either_day says that it is enough if one of days and weekdays matches. PQ004: not a cron expression.';
