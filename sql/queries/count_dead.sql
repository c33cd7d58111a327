-- What an action on dead messages would do, if nothing changes until then. Later deaths are left out, because a message that is
-- requeued and dies again must not be requeued again by the same action.
WITH found AS MATERIALIZED (
    SELECT d.id, d.place
      FROM messages.dead_ids(
            %(queue_name)s, results => %(results)s, fingerprints => %(fingerprints)s, max_messages => %(most)s,
            reference => %(reference)s, since => %(since)s, until => least(%(until)s, clock_timestamp()))
           WITH ORDINALITY AS d (id, place))
SELECT (SELECT count(*) FROM found) AS count, ARRAY(SELECT f.id FROM found f ORDER BY f.place LIMIT 5) AS ids,
       (SELECT f.id FROM found f ORDER BY f.place DESC LIMIT 1) AS newest, least(%(until)s, clock_timestamp()) AS until
