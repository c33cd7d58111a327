-- One row if this login is a superuser.
SELECT FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolsuper
