"""The queues that are measured: ours, PGMQ, PgQueuer, procrastinate, the seed's statements, a plain table."""
