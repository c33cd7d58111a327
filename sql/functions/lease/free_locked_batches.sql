CREATE OR REPLACE FUNCTION messages.free_locked_batches(queue_name text, lock_token uuid DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM messages.check_access(free_locked_batches.queue_name, 'consume');
    RETURN messages.end_locked_batches(free_locked_batches.queue_name, free_locked_batches.lock_token);
END $$;
COMMENT ON FUNCTION messages.free_locked_batches(text, uuid) IS
    'Ends the batches of a queue whose session died after record_locked_batch, and returns how many there were: the death was an attempt of each of their messages, which are ready again or, after their last attempt, archived as lock_expired. With a lock_token forgets this batch of the caller, about to be rolled back: that is no attempt.';
