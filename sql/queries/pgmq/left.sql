SELECT count(*), max(vt) FROM pgmq.{table}
