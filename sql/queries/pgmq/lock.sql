SET LOCAL lock_timeout = '2s';
LOCK TABLE pgmq.{table} IN SHARE ROW EXCLUSIVE MODE
