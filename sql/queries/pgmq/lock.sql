SET LOCAL lock_timeout = '2s';
LOCK TABLE pgmq.{waiting} IN SHARE ROW EXCLUSIVE MODE
