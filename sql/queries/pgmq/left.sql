SELECT count(*), max(vt) FROM pgmq.{waiting}
