CREATE OR REPLACE FUNCTION messages.group_lock_key(queue_name text, group_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT hashtextextended('messages.group.' || queue_name, (hashtextextended(group_key, 0) & 255)) $$;
COMMENT ON FUNCTION messages.group_lock_key(text, text) IS
    'The key of the advisory lock of a group: 256 keys for all groups of a queue, so that a large batch needs no more locks.';
