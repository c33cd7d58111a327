-- One row if the schema belongs to the role that should own it.
SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'messages' AND nspowner = to_regrole('messages_owner')
