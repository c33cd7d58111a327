CREATE OR REPLACE FUNCTION messages.is_mostly_dead() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_stat_get_dead_tuples('messages.message'::regclass) > 10000 + 10 * pg_stat_get_live_tuples('messages.message'::regclass);
$$;
COMMENT ON FUNCTION messages.is_mostly_dead() IS
    'Whether nearly all that messages.message holds are dead versions, which a held snapshot keeps. Then it costs a third to read the whole table, where a walk along its index would pass over all of them.';
