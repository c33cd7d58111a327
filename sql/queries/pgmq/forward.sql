-- Messages that a publisher sends there are published here from now on, in the same transaction; pgmq.send still returns its msg_id.
CREATE OR REPLACE FUNCTION pgmq.forward_to_messages() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DELETE FROM %s WHERE msg_id = $1', TG_RELID::regclass) USING NEW.msg_id;
    PERFORM messages.publish(TG_ARGV[0], coalesce(NEW.message, 'null'), visible_at => NEW.vt, headers => nullif(to_jsonb(NEW) -> 'headers', 'null'),
                             reference => 'pgmq ' || NEW.msg_id);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION pgmq.forward_to_messages() FROM PUBLIC;
CREATE OR REPLACE TRIGGER forward_to_messages AFTER INSERT ON pgmq.{table} FOR EACH ROW EXECUTE FUNCTION pgmq.forward_to_messages({queue_name})
