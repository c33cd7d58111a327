CREATE OR REPLACE FUNCTION messages.pause_queue(queue_name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT messages.alter_queue(pause_queue.queue_name, paused => true) $$;
COMMENT ON FUNCTION messages.pause_queue(text) IS
    'Stops leasing from a queue; publishing continues, and leased messages can still be finished. PQ001: unknown queue; PQ016: a transaction that changes the queue, dispatches from it, or leases from one with a max_leased, stayed open for more than three seconds.';
