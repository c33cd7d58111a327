-- A lease looks only from one mark on, and sweeps only after the other: without a reset it would find nothing.
SELECT pg_catalog.setval(mark, 1) FROM messages.queue_priority, unnest(ARRAY[low_water, sweep_due]) mark
