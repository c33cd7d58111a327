CREATE OR REPLACE FUNCTION messages.estimate_messages(relation regclass, queue_names text[], moment timestamptz, max_pages integer DEFAULT 100)
RETURNS TABLE (queue_name text, messages bigint, leased bigint, delayed bigint, margin bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    pages   bigint  := pg_relation_size(relation) / current_setting('block_size')::integer;
    samples integer := least(pages, max_pages);
    each    float   := pages::float / greatest(samples, 1);
BEGIN
    IF cardinality(queue_names) > 0 THEN
        -- The pages of a queue lie together, where it was filled at once, or are mixed with others. What a page has tells
        -- about its neighbours as much as two sampled pages in a row resemble each other. And a run of full pages that is
        -- shorter than the distance between two samples may be missed entirely.
        RETURN QUERY
        WITH sampled AS MATERIALIZED (
            SELECT * FROM messages.sample_messages(relation, estimate_messages.queue_names, estimate_messages.moment, samples)),
        found AS (
            SELECT name AS queue_name, number, coalesce(s.messages, 0) AS messages, coalesce(s.leased, 0) AS leased,
                   coalesce(s.delayed, 0) AS delayed
              FROM unnest(estimate_messages.queue_names) AS name CROSS JOIN generate_series(1, samples) AS number
              LEFT JOIN sampled s ON s.queue_name = name AND s.sample = number),
        steps AS (
            SELECT f.*, f.messages - lag(f.messages) OVER (PARTITION BY f.queue_name ORDER BY f.number) AS step FROM found f)
        SELECT s.queue_name, (each * sum(s.messages))::bigint, (each * sum(s.leased))::bigint, (each * sum(s.delayed))::bigint,
               CASE WHEN each > 1
                    THEN ceil(each * (2 * sqrt(coalesce(sum(s.step ^ 2), 0) / 2)
                                      + (SELECT max(on_page.messages) FROM (
                                            SELECT sum(f.messages) AS messages FROM sampled f GROUP BY f.sample) on_page)))::bigint
                    ELSE 0 END
          FROM steps s GROUP BY s.queue_name;
    END IF;
END $$;
COMMENT ON FUNCTION messages.estimate_messages(regclass, text[], timestamptz, integer) IS
    'About how many messages of some queues messages.message_rows or messages.dead_message holds, from a sample of its pages. margin: how far messages may be off, in 95 of 100 cases; 0 if all pages were read.';
