-- A lease looks only from its marks on, and at all of the queue only when a look is due: without a reset it would find nothing.
SELECT pg_catalog.setval(mark, 1) FROM (SELECT mark FROM messages.lane WHERE mark IS NOT NULL UNION ALL SELECT look_due FROM messages.queue
                                       UNION ALL SELECT rate_mark FROM messages.queue WHERE rate_mark IS NOT NULL) marks
