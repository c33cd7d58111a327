CREATE OR REPLACE FUNCTION messages.create_depth_sequences(queue_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = '' SET default_table_access_method = 'heap'
AS $$
#variable_conflict use_column
DECLARE
    number integer := nextval('messages.depth_sequence_number');
    own    text := format('messages.depth_number_%s', number);
    last   text := format('messages.depth_last_%s', number);
    due    text := format('messages.depth_recount_at_%s', number);
BEGIN
    EXECUTE format('CREATE SEQUENCE %s AS bigint', own);
    EXECUTE format('CREATE SEQUENCE %s AS bigint MINVALUE 0', last);
    EXECUTE format('CREATE SEQUENCE %s AS bigint', due);
    UPDATE messages.queue q SET depth_number = own::regclass, depth_last = last::regclass, depth_recount_at = due::regclass
     WHERE q.queue_name = create_depth_sequences.queue_name COLLATE "default";
END $$;
COMMENT ON FUNCTION messages.create_depth_sequences(text) IS 'Creates the sequences of a queue that gets a max_depth for the first time.';
