CREATE OR REPLACE FUNCTION messages.audited(
    acting_user text,
    verb        text,
    arguments   jsonb DEFAULT '{}',
    request     uuid  DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    allowed CONSTANT text[] := ARRAY[
        'publish', 'release', 'release_messages', 'cancel', 'change', 'requeue', 'requeue_dead', 'dismiss', 'dismiss_dead',
        'create_queue', 'alter_queue', 'pause_queue', 'resume_queue', 'purge_queue', 'drop_queue', 'grant_queue', 'revoke_queue',
        'bind_topic', 'unbind_topic', 'alter_history'];
    -- SET ROLE counts, as it would for the verb itself.
    role    text   := coalesce(nullif(current_setting('role'), 'none'), session_user);
    before  bigint := coalesce(pg_sequence_last_value('messages.audit_audit_id_seq'), 0);
    known   pg_proc;
    unknown text;
    given   text;
    rows    jsonb;
BEGIN
    PERFORM messages.check_length('acting_user', audited.acting_user, 1, 250, required => true);
    IF audited.verb = ANY (allowed) IS NOT TRUE OR jsonb_typeof(audited.arguments) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'verb is %, with arguments of type %', coalesce(quote_literal(left(audited.verb, 100)), 'NULL'),
                        coalesce(jsonb_typeof(audited.arguments), 'NULL')
            USING ERRCODE = 'PQ004', HINT = format('Give an object of arguments and one of these: %s.', array_to_string(allowed, ', '));
    END IF;
    SELECT p.* INTO known FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace AND p.proname = audited.verb;
    IF NOT has_function_privilege(role, known.oid, 'EXECUTE') THEN
        RAISE EXCEPTION 'permission denied for function %', audited.verb USING ERRCODE = '42501';
    END IF;
    SELECT min(key) INTO unknown FROM jsonb_object_keys(audited.arguments) AS key
     WHERE key <> ALL (known.proargnames[:known.pronargs]);
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION '% has no argument %', audited.verb, quote_literal(left(unknown, 100))
            USING ERRCODE = 'PQ004', HINT = format('It takes %s.', array_to_string(known.proargnames[:known.pronargs], ', '));
    END IF;
    IF audited.request IS NOT NULL THEN
        -- Of two at once the second waits here, and sees what the first has done.
        PERFORM messages.lock_name('audited.' || audited.request);
        IF EXISTS (SELECT FROM messages.audit a WHERE a.request = audited.request) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF 'remedied_by' = ANY (known.proargnames) THEN
        arguments := jsonb_build_object('remedied_by', audited.acting_user) || arguments;
    END IF;
    SELECT string_agg(format(CASE WHEN jsonb_typeof(audited.arguments -> a.name) = 'null' THEN '%1$I => NULL::%2$s'
                                  WHEN a.type = 'jsonb'::regtype THEN '%1$I => $1 -> %3$L'
                                  WHEN jsonb_typeof(audited.arguments -> a.name) = 'array'
                                  THEN '%1$I => ARRAY(SELECT jsonb_array_elements_text($1 -> %3$L))::%2$s'
                                  ELSE '%1$I => ($1 ->> %3$L)::%2$s' END, a.name, format_type(a.type, NULL), a.name), ', ')
      INTO given
      FROM unnest(known.proargnames[:known.pronargs], known.proargtypes::oid[]) AS a (name, type)
     WHERE audited.arguments ? a.name;
    BEGIN
        EXECUTE format('SELECT coalesce(jsonb_agg(to_jsonb(r)), ''[]'') FROM messages.%I(%s) AS r', audited.verb, coalesce(given, ''))
           INTO rows USING audited.arguments;
    EXCEPTION WHEN data_exception OR undefined_function THEN
        RAISE EXCEPTION '% cannot be called with these arguments: %', audited.verb, SQLERRM
            USING ERRCODE = 'PQ004', HINT = format('It takes %s.', pg_get_function_arguments(known.oid));
    END;
    -- What records itself has done so; of the rest, bodies, errors and tokens stay out.
    UPDATE messages.audit a SET acting_user = audited.acting_user, request = audited.request
     WHERE a.audit_id > before AND a.xid = pg_current_xact_id()::text::bigint AND a.login = session_user AND a.acting_user IS NULL;
    IF NOT FOUND THEN
        INSERT INTO messages.audit (acting_user, request, action, queue_name, arguments, affected)
        VALUES (audited.acting_user, audited.request, audited.verb, audited.arguments ->> 'queue_name',
                audited.arguments - '{queue_name,message,messages,headers,failure,details,lock_token}'::text[],
                CASE WHEN known.prorettype = 'void'::regtype THEN NULL
                     WHEN jsonb_typeof(rows -> 0) = 'number' AND known.proretset = false AND audited.verb <> 'publish' THEN (rows ->> 0)::bigint
                     WHEN jsonb_typeof(rows -> 0) = 'boolean' THEN (rows ->> 0)::boolean::integer
                     ELSE jsonb_array_length(rows) END);
    END IF;
    RETURN rows;
END $$;
COMMENT ON FUNCTION messages.audited(text, text, jsonb, uuid) IS
    'Calls a verb with named arguments, which this login must be allowed to call, records it in the audit with the name of the user for whom it acts, and returns the rows of the verb. That name is as trustworthy as the caller; the entry also has the login. With a request, a call of the same request that was done before does nothing and returns NULL. PQ004: no name, an unknown verb or argument; PQ016: the same request is under way for more than three seconds; otherwise errors as in the verb.';
