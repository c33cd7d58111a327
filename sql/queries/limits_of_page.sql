-- A page that waits holds a thread of the server that serves it, in Airflow that of its whole API. For this transaction
-- only, because behind a pooler the session is somebody else's next. Its queries are short, so that compiling them costs
-- more than it gives. The texts of errors are for whoever may read bodies, whatever the login of the connection may.
SELECT pg_catalog.set_config('statement_timeout', %(longest)s, true),
       pg_catalog.set_config('lock_timeout', %(locked)s, true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('messages.bodies', %(bodies)s, true)
