"""The queue with limits, and the log of its leases, which says whether they were kept."""

from __future__ import annotations

from typing import Any, Final

import psycopg

LIMITED: Final = "a_limited"
PER_GROUP: Final = 3
RATE: Final = 15  # in a second
BURST: Final = 10
IN_ANY_SECOND: Final = RATE + BURST - 1
POLICY: Final = (
    f"fair_by => 'group', on_dead_head => 'skip', max_leased_per_group => {PER_GROUP},"
    f" rate_limit => {RATE}, rate_burst => {BURST}"
)
# A trigger writes the log in the transactions in which leases begin and end. A session that leases a group sees the end
# of a lease after its commit, and begins its own lease later: so the times in the log overlap only where leases do.
LOG: Final = """
CREATE TABLE public.lease_log (
    id bigint, lock_token uuid, group_key text, leased_at timestamptz, began timestamptz, ended timestamptz,
    PRIMARY KEY (id, lock_token));
CREATE FUNCTION public.log_lease() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    UPDATE public.lease_log l
       SET ended = CASE WHEN new.lock_token = old.lock_token THEN new.lock_expires_at
                        ELSE least(clock_timestamp(), old.lock_expires_at) END
     WHERE l.id = old.id AND l.lock_token = old.lock_token;
    INSERT INTO public.lease_log
    SELECT new.id, new.lock_token, new.group_key, new.leased_at, clock_timestamp(), new.lock_expires_at
     WHERE new.lock_token IS NOT NULL AND new.lock_token IS DISTINCT FROM old.lock_token;
    RETURN NULL;
END $$;
CREATE TRIGGER log_lease AFTER UPDATE OR DELETE ON messages.message_rows
   FOR EACH ROW WHEN (old.queue_name = 'a_limited') EXECUTE FUNCTION public.log_lease();
"""
OF_A_GROUP: Final = """
SELECT coalesce(max(leased), 0) FROM (
    SELECT sum(change) OVER (PARTITION BY group_key ORDER BY at, change) AS leased
      FROM public.lease_log CROSS JOIN LATERAL (VALUES (began, 1), (ended, -1)) AS moment (at, change)
     WHERE group_key IS NOT NULL) counted
"""
IN_A_SECOND: Final = """
SELECT coalesce(max(leased), 0) FROM (
    SELECT count(*) OVER (ORDER BY leased_at RANGE BETWEEN interval '0.999999 s' PRECEDING AND CURRENT ROW) AS leased
      FROM public.lease_log) counted
"""


def most_leased(conn: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return how many messages of one group were leased at the same time at most, and how many in any second."""
    ((of_a_group, in_a_second),) = conn.execute(f"SELECT ({OF_A_GROUP}), ({IN_A_SECOND})".encode()).fetchall()
    return int(of_a_group), int(in_a_second)
