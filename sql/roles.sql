-- The group roles, which belong to the whole cluster. They are left out if the caller may not create roles, or with
-- PGOPTIONS="-c messages.roles=off": privileges are then granted by hand.
DO $$
DECLARE
    groups text[] := ARRAY['messages_publisher', 'messages_consumer', 'messages_observer', 'messages_maintenance',
                           'messages_admin', 'messages_raw', 'messages_reader', 'messages_pipeline', 'messages_limited'];
    name   text;
    part   record;
BEGIN
    IF current_setting('messages.roles', true) = 'off' THEN
        RETURN;
    END IF;
    FOREACH name IN ARRAY ARRAY['messages_owner'] || groups LOOP
        CONTINUE WHEN to_regrole(name) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL;                      -- an installation in another database was faster
            WHEN insufficient_privilege THEN
                RAISE INFO 'role % may not create role %: installed without the group roles', current_user, name
                    USING HINT = format('With ALTER ROLE %I CREATEROLE the next installation makes them; or grant EXECUTE by hand.', current_user);
                RETURN;
        END;
    END LOOP;
    -- messages_pipeline includes messages_reader. messages_owner grants the groups to teams (grant_queue), reads sessions and
    -- settings (health), and lets its members upgrade.
    FOR part IN
        SELECT unnest AS granted, 'messages_owner' AS member, ' WITH ADMIN OPTION' AS how FROM unnest(groups)
        UNION ALL VALUES ('messages_reader', 'messages_pipeline', ''),
                         ('pg_read_all_stats', 'messages_owner', ''), ('pg_read_all_settings', 'messages_owner', ''),
                         ('messages_owner', current_user::text, '')
    LOOP
        CONTINUE WHEN pg_has_role(part.member, part.granted, 'USAGE')
            AND (part.how = '' OR pg_has_role(part.member, part.granted, 'USAGE WITH ADMIN OPTION'));
        BEGIN
            EXECUTE format('GRANT %I TO %I%s', part.granted, part.member, part.how);
        EXCEPTION
            WHEN unique_violation THEN
                NULL;                      -- the same
            WHEN insufficient_privilege THEN
                RAISE INFO 'role % may not grant % to %', current_user, part.granted, part.member
                    USING HINT = format('A role that may grant it can run: GRANT %I TO %I%s', part.granted, part.member, part.how);
        END;
    END LOOP;
END $$;
