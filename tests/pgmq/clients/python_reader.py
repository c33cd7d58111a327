"""Reads a queue with PGMQ's Python client until it is stopped, and archives what it read.

Called as `python python_reader.py QUEUE HOST PORT DATABASE USER`.
"""

import sys

import pgmq

queue, host, port, database, user = sys.argv[1:]
client = pgmq.SyncPGMQueue(host=host, port=port, database=database, username=user, password="", init_extension=False)
while True:
    for message in client.read_with_poll(queue, vt=30, qty=10, max_poll_seconds=5) or []:
        client.archive(queue, message.msg_id)
