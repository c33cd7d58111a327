-- A day at an airport: what the pictures show. Written into the tables, because it happened before now.
SELECT setseed(0.42);
SELECT messages.drop_queue('default');
SELECT messages.create_queue(name, max_attempts => 3, retention => '90 days')
  FROM unnest('{departures,arrivals,baggage,boarding,crew_plans,delays,deicing,fuel_orders,gate_changes,invoices,passengers,refunds,weather}'::text[]) AS name;

-- As if maintenance had run in each minute of a week.
UPDATE messages.history_progress SET begun_at = clock_timestamp() - interval '8 days';

CREATE TEMP TABLE volume (queue_name text, per_minute numeric, failing numeric);
INSERT INTO volume VALUES ('departures', 6, .02), ('arrivals', 6, .003), ('baggage', 9, .001), ('boarding', 4, 0), ('crew_plans', .4, 0),
    ('delays', 1.5, 0), ('fuel_orders', 1, 0), ('gate_changes', .8, 0), ('passengers', 12, .0005), ('weather', .5, 0), ('invoices', .3, .02);

-- Of those that die some are rejected, and the others fail in one of two ways.
CREATE TEMP TABLE cause (kinds integer[], result text, details text, failure jsonb);
INSERT INTO cause VALUES ('{0}', 'rejected', 'no departure time', NULL),
    ('{1,2}', 'failed', 'no arrival report yet from JFK', jsonb_build_object('error', 'flights.arrivals.MissingArrivalReport', 'message', 'no arrival report yet from JFK',
        'traceback', E'Traceback (most recent call last):\n  File "handlers.py", line 41, in handle\n    report = reports[flight]\nflights.arrivals.MissingArrivalReport: no arrival report yet from JFK')),
    ('{3,4}', 'failed', 'connection to crew-api timed out', jsonb_build_object('error', 'TimeoutError', 'message', 'connection to crew-api timed out',
        'traceback', E'Traceback (most recent call last):\n  File "handlers.py", line 58, in handle\n    crew = crew_api.of(flight)\nTimeoutError: connection to crew-api timed out'));

-- A day of finished messages, with its rhythm.
INSERT INTO messages.message_archive (id, created_at, leased_at, archived_at, attempts, queue_name, result, handled_by, details,
                                      reference, message, headers, fingerprint, failure)
SELECT nextval('messages.message_id_seq'), m.at - wait, m.at, m.at + run, CASE WHEN bad THEN 3 ELSE 1 END, m.queue_name,
       coalesce(c.result, 'success'),
       format('flights/scheduled__%s/handle/-1/1@%s@worker-%s', to_char(m.at, 'YYYY-MM-DD"T"HH24:00:00+00:00'), 4100 + place % 7, place % 3 + 1),
       c.details,
       format('%s-%s', upper(left(m.queue_name, 2)), 1000 + place % 9000), jsonb_build_object('flight', 'AA' || place % 999, 'gate', 'B' || place % 40),
       '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "source": "tower"}',
       NULL, c.failure
  FROM (SELECT v.*, place, clock_timestamp() - interval '24 hours' * random() - interval '20 seconds' AS at, random() AS chance, (random() * 4)::integer AS kind,
               interval '1 second' * (0.05 + 40 * power(random(), 6)) AS wait, interval '1 second' * (0.1 + 12 * power(random(), 3)) AS run
          FROM volume v CROSS JOIN LATERAL generate_series(1, (v.per_minute * 1440)::integer) AS place) m
 CROSS JOIN LATERAL (SELECT m.chance < m.failing * CASE WHEN m.at > clock_timestamp() - interval '5 hours' THEN 4 ELSE 1 END AS bad) d
  LEFT JOIN cause c ON d.bad AND m.kind = ANY (c.kinds)
 WHERE random() < 0.55 + 0.45 * sin((extract(epoch FROM m.at)::numeric / 13750)::float8) OR d.bad
 ORDER BY m.at;

-- archive() sets it; what is inserted has it in the list of the dead alone.
UPDATE messages.message_archive a SET fingerprint = d.fingerprint FROM messages.dead_message d WHERE d.id = a.id AND d.archived_at = a.archived_at;

-- What waits now.
SELECT count(published) FROM (SELECT messages.publish_batch(name, (SELECT jsonb_agg(jsonb_build_object('n', n)) FROM generate_series(1, many) AS n)) AS published
  FROM (VALUES ('passengers', 184), ('baggage', 61), ('departures', 37), ('arrivals', 12), ('boarding', 4), ('fuel_orders', 3), ('deicing', 9)) AS waiting (name, many)) p;
UPDATE messages.message SET created_at = created_at - random() * interval '40 minutes';
SELECT messages.pause_queue('deicing');
SELECT messages.publish('invoices', '{"invoice": 7}');
UPDATE messages.message SET created_at = clock_timestamp() - interval '27 hours', visible_at = clock_timestamp() - interval '27 hours' WHERE queue_name = 'invoices';
SELECT count(*) FROM (VALUES ('passengers', 24, 'worker-1'), ('baggage', 16, 'worker-2'), ('departures', 8, 'worker-3'), ('arrivals', 4, 'worker-1')) AS held (name, many, host)
 CROSS JOIN LATERAL messages.lease(name, many, '30 minutes', format('flights/scheduled__%s/handle/-1/1@4107@%s', to_char(now(), 'YYYY-MM-DD"T"HH24:00:00+00:00'), host));
SELECT count(*) FROM messages.dispatch_messages('departures', 'handle_departures', max_open => 3, batch_size => 5);
