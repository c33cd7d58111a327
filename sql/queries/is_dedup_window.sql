-- Whether a text is a duration that publish takes as dedup_window.
SELECT %s::text::interval BETWEEN '1 second' AND '366 days'
