-- A page that waits holds a thread of its server, in Airflow of the whole API server. The settings are for this transaction
-- only, because behind a pooler the next client gets the session. The queries of the page are short, so compiling them costs
-- more than it gives. Texts of errors are for users who may read bodies, whatever the login of the connection may.
SELECT pg_catalog.set_config('statement_timeout', %(longest)s, true),
       pg_catalog.set_config('lock_timeout', %(locked)s, true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('messages.bodies', %(bodies)s, true)
