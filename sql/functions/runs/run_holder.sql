CREATE OR REPLACE FUNCTION messages.run_holder(run_id text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Each login has its own names of runs. The login is written without spaces, so that the name of one run is not the beginning of another's.
RETURN 'spark ' || run_id || ' ' || replace(session_user::text, ' ', '_') || ' ';
COMMENT ON FUNCTION messages.run_holder(text) IS
    'How locked_by and handled_by begin for what a run of a pipeline leases: ''spark RUN LOGIN ''. Two logins may use one name of a run.';
