CREATE OR REPLACE FUNCTION messages.group_lock(queue_name text, group_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT hashtextextended('messages.group.' || queue_name, (hashtextextended(group_key, 0) & 255)) $$;
COMMENT ON FUNCTION messages.group_lock(text, text) IS
    'Internal. The advisory lock of a group: 256 for all groups of a queue, so that a large batch needs no more.';
