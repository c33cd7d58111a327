-- Each verb as a client calls it that knows nothing of types; $q stands for the queue. Read by tests/core/connection/test_settings.py.
-- create_queue
SELECT messages.create_queue('$q', max_attempts => 2, backoff_first => '0', dedup_window => '90 minutes');
-- alter_queue
SELECT messages.alter_queue('$q', retention => '1 mon 2 days 03:04:05.5', max_leased => 1000);
-- publish
SELECT messages.publish('$q', '{"n": 1, "text": "äöü '' "}', priority => 3, expires_in => '1 day', headers => '{"a": 1}', topic => 'orders.new.eu') > 0;
-- publish delayed
SELECT messages.publish('$q', '{"n": 2}', delay => '36 hours') > 0;
-- publish_batch
SELECT count(*) FROM messages.publish_batch('$q', '[{"n": 3}, {"n": 4}]', "references" => ARRAY['a', NULL], topics => ARRAY['ordersxnewxeu', NULL]);
-- publish group
SELECT count(*) FROM messages.publish_batch('$q', '[{"n": 5}, {"n": 6}]', group_keys => ARRAY['g', 'g'], topics => ARRAY['group', 'group']);
-- publish_deduplicated
SELECT duplicate FROM messages.publish_deduplicated('$q', '[{"n": 7}, {"n": 8}]', ARRAY['k', 'k']);
-- publish bad topic
SELECT messages.publish('$q', '1', topic => E'a\\b');
-- bind_topic
SELECT messages.bind_topic('$q', 'orders.*.eu'), messages.bind_topic('$q', 'all.#');
-- route_topic
SELECT messages.route_topic('orders.old.eu');
-- route_topic of none
SELECT count(*) FROM messages.route_topic('ordersxoldxeu');
-- publish_topic
SELECT queue_name FROM messages.publish_topic('all.day.long', '{"n": 9}', priority => 0);
-- publish_topic of none
SELECT messages.publish_topic('allxday', '1');
-- lease one
SELECT message ->> 'n', attempts, priority, reference, topic FROM messages.lease('$q', 1, lease_for => '90 seconds');
-- lease
SELECT message ->> 'n', attempts, reference, topic, group_key, lock_expires_at - clock_timestamp() BETWEEN '59 min' AND '1 hour' FROM messages.lease('$q', 10, locked_by => 'me', lease_for => '1 hour') ORDER BY 1;
-- extend
SELECT count(*) FROM messages.message m, messages.extend(m.lock_token, ARRAY[m.id], '1 day -12 hours') e WHERE m.queue_name = '$q' AND m.locked_by = 'me';
-- status
SELECT depth, ready, leased, delayed, dead FROM messages.status('$q');
-- release
SELECT count(*) FROM messages.message m, messages.release(m.lock_token, ARRAY[m.id], delay => '1 microsecond', details => 'later') e WHERE m.queue_name = '$q' AND m.message ->> 'n' = '3';
-- archive failed
SELECT count(*) FROM messages.message m, messages.archive(m.lock_token, ARRAY[m.id], 'failed', failure => '{"error": "E", "message": "no 4711 in ''this'' deadbeef-17"}') e WHERE m.queue_name = '$q' AND m.message ->> 'n' IN ('1', '5');
-- archive
SELECT count(*) FROM messages.message m, messages.archive(m.lock_token, ARRAY[m.id], output => '{"x": 0.1}') e WHERE m.queue_name = '$q' AND m.message ->> 'n' = '4';
-- archive lost
SELECT count(*) FROM messages.archive('00000000-0000-0000-0000-000000000000', ARRAY[1]);
-- once
SELECT messages.once('$q', 1), messages.once('$q', 1);
-- ready_queues
SELECT queue_name FROM messages.ready_queues(ARRAY['$q']);
-- scan
SELECT queue_name FROM messages.scan(ARRAY['$q']);
-- dead_causes
SELECT fingerprint, waiting, example FROM messages.dead_causes('$q');
-- search_messages
SELECT message_reference, message_state, at > created_at FROM messages.search_messages('$q', state => 'done', since => clock_timestamp() - interval '1 hour') ORDER BY 2;
-- requeue
SELECT count(*) FROM messages.lease_dead('$q', lease_for => '1 hour') d, messages.requeue(d.lock_token, ARRAY[d.id]);
-- requeue_dead
SELECT count(*) FROM messages.requeue_dead('$q');
-- begin_run
SELECT messages.begin_run('$q', 'publish') ->> 'pipeline', messages.begin_run('$q.2', 'export') ->> 'pipeline';
-- stage_publish
SELECT messages.stage_publish('$q', '$q', '$q') ~ '^messages.publish_stage_[0-9]+$';
-- publish_staged
SELECT messages.publish_staged('$q', '$q', '[]', '$q') IS NOT NULL;
-- drop_stage
SELECT messages.drop_stage('$q');
-- finish_run
SELECT messages.finish_run('$q.2', '{"a": 1}') ->> 'a';
-- purge_queue
SELECT messages.purge_queue('$q') >= 0;
-- archive_log_end
SELECT horizon > 0, removals, gone_before_xid FROM messages.archive_log_end();
-- archive_partitions
SELECT count(*), extract(epoch FROM min(end_at - first_at)) > 86399, max(to_char(first_at AT TIME ZONE 'UTC', 'DD HH24')) FROM messages.archive_partitions();
-- partition_archive
SELECT messages.partition_archive('day') IS NULL, messages.partition_archive('month') IS NULL;
-- adopt_archive_default
SELECT messages.adopt_archive_default();
-- grant_queue
SELECT count(*) FROM messages.queue_grants();
-- maintenance
SELECT (messages.maintain() ->> 'partitions_made')::integer;
-- health
SELECT check_name, severity FROM messages.health() WHERE check_name NOT IN ('settings', 'dead_messages', 'held_snapshot') ORDER BY 1;
-- left
SELECT message ->> 'n', priority, attempts, reference, topic, group_key, headers FROM messages.message WHERE queue_name = '$q' ORDER BY 1, 2;
-- archived
SELECT message ->> 'n', result, details, failure ->> 'message', output, fingerprint, resolution FROM messages.message_archive WHERE queue_name = '$q' ORDER BY 1, 2;
-- drop_queue
SELECT messages.drop_queue('$q', force => true);
