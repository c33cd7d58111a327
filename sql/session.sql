-- The settings that the installation needs in its transaction, whatever the role or database sets.
SET LOCAL lock_timeout = '30s';            -- rather fail than wait long for a table: every worker would queue up behind it
SET LOCAL statement_timeout = 0;
SET LOCAL check_function_bodies = on;      -- an error in a function fails the installation, with its file and line
SET LOCAL plpgsql.extra_errors = 'none';    -- a role may set it: then a matter of style fails the installation
SET LOCAL plpgsql.extra_warnings = 'none';
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL standard_conforming_strings = on;
SET LOCAL quote_all_identifiers = off;
SET LOCAL DateStyle = 'ISO';
SET LOCAL IntervalStyle = postgres;
SET LOCAL array_nulls = on;
SET LOCAL row_security = on;
SET LOCAL default_tablespace = '';
