-- The statement that lets this login make, or belong to, the roles of the queue.
SELECT CASE WHEN to_regrole('messages_owner') IS NULL THEN format('ALTER ROLE %I CREATEROLE', current_user)
            ELSE format('GRANT messages_owner TO %I', current_user) END
