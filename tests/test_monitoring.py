"""The metrics, and the files for Prometheus, sql_exporter and Grafana: they name what there is."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli import exposition
from airflow_provider_pgqueue.core import ConnectionFailed, run, verbs
from tests.core.archive.test_history import note
from tests.waiting import until
from tools import ROOT, prometheus
from tools.ports import free_port

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
FOLDER = ROOT / "monitoring"
PAGE = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
PER_QUEUE = 18
COMMON = 60  # the checks of health() with three severities, and what is of all queues


@pytest.fixture
def orders(conn: Connection, queue: Queue) -> str:
    queue("orders", max_attempts=1)
    run(conn, verbs.publish_batch("orders", list(range(5))))
    held = run(conn, verbs.lease("orders", max_messages=3))
    run(conn, verbs.archive(held[0].lock_token, [held[0].id]))
    run(conn, verbs.archive(held[0].lock_token, [held[1].id], result="failed"))
    conn.execute("SELECT messages.maintain()")
    note(conn)
    # Rates are of minutes that are over.
    conn.execute("UPDATE messages.history SET bucket_at = bucket_at - interval '2 minutes' WHERE grain = 'minute'")
    return "orders"


def parsed(conn: Connection, **arguments: Any) -> dict[str, Metric]:
    text = exposition.as_text(run(conn, verbs.metrics(**arguments)))
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(found)


def exported(conn: Connection) -> dict[str, set[str]]:
    """Return the labels of each metric."""
    found: dict[str, set[str]] = {"pgqueue_up": set()}
    for row in run(conn, verbs.metrics()):
        found.setdefault(row["metric"], set()).update(row["labels"])
    return found


def test_the_metrics_are_openmetrics_with_the_numbers_of_the_queue(conn: Connection, orders: str) -> None:
    found = parsed(conn)
    for state, number in {"ready": 2, "leased": 1, "delayed": 0}.items():
        assert value(found, "pgqueue_unfinished_messages", queue="orders", state=state) == number
    assert value(found, "pgqueue_published_messages_total", queue="orders") == 5
    for result, number in {"success": 1, "failed": 1, "rejected": 0}.items():
        assert value(found, "pgqueue_finished_messages_total", queue="orders", result=result) == number
    assert value(found, "pgqueue_delivery_attempts_total", queue="orders") == 2
    assert value(found, "pgqueue_dead_messages", queue="orders") == 1
    assert 0 < value(found, "pgqueue_oldest_ready_age_seconds", queue="orders") < 60
    assert 0 < value(found, "pgqueue_oldest_lease_age_seconds", queue="orders") < 60
    assert value(found, "pgqueue_queues") == 2
    assert value(found, "pgqueue_up") == 1
    run(conn, verbs.pause_queue("orders"))
    assert value(parsed(conn), "pgqueue_queue_paused", queue="orders") == 1


def test_the_oldest_lease_is_the_one_held_for_longest_however_often_it_was_extended(
    conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))
    first, second = (run(conn, verbs.lease("orders", max_messages=2)) for _ in range(2))
    conn.execute(
        "UPDATE messages.message_rows SET leased_at = leased_at - interval '1 hour' WHERE lock_token = %s",
        [first[0].lock_token],
    )

    def held() -> list[float]:
        found = run(conn, verbs.metrics(names=["pgqueue_oldest_lease_age_seconds"]))
        return [row["value"] // 3600 for row in found]

    run(conn, verbs.extend(first[0].lock_token, [first[0].id, first[1].id], lease_for=timedelta(minutes=1)))
    # One of the batch is finished, and the timer still names both.
    run(conn, verbs.archive(first[0].lock_token, [first[0].id]))
    assert held() == [1]
    run(conn, verbs.archive(first[0].lock_token, [first[1].id]))
    assert held() == [0]
    run(conn, verbs.archive(second[0].lock_token, [message.id for message in second]))
    assert held() == []


def test_the_oldest_lease_is_found_without_reading_what_is_delayed(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    for _ in range(5):
        run(conn, verbs.publish_batch(queue("orders"), list(range(2000)), expires_in=timedelta(minutes=1)))
    run(conn, verbs.publish("orders", 1, priority=9))
    (held,) = run(conn, verbs.lease("orders"))
    assert held.priority == 9
    fresh = connect()
    with fresh.transaction():
        (row,) = run(fresh, verbs.metrics(names=["pgqueue_oldest_lease_age_seconds"]))
        read = fresh.execute(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables"
            " WHERE relname ~ '^(message|timer)'"
        ).fetchone()
    assert row["labels"] == {"queue": "orders"}
    assert read[0] < 100


def test_a_queue_that_nobody_consumes_shows_among_the_others_of_which_some_are(conn: Connection, queue: Queue) -> None:
    for name in ("dead", "busy", "paused"):
        run(conn, verbs.publish_batch(queue(name), [1, 2]))
    run(conn, verbs.lease("busy"))
    run(conn, verbs.pause_queue("paused"))
    conn.execute(
        "UPDATE messages.message_rows SET visible_at = visible_at - CASE queue_name"
        " WHEN 'dead' THEN interval '1 hour' ELSE interval '1 day' END WHERE lock_expires_at IS NULL"
    )

    def age(**arguments: Any) -> dict[str, float]:
        found = run(conn, verbs.metrics(names=["pgqueue_oldest_unconsumed_age_seconds"], **arguments))
        return {row["labels"]["queue"]: row["value"] // 3600 for row in found}

    assert age(max_queues=0) == {"other": 1}
    assert age() == {"dead": 1, "busy": 0, "paused": 0, "default": 0}


def test_counters_only_grow(conn: Connection, orders: str) -> None:
    run(conn, verbs.publish_batch("orders", [1, 2]))
    conn.execute("SELECT messages.consume('orders', 10)")
    note(conn)
    found = parsed(conn)
    assert value(found, "pgqueue_published_messages_total", queue="orders") == 7
    assert value(found, "pgqueue_finished_messages_total", queue="orders", result="success") == 5
    run(conn, verbs.drop_queue("orders", force=True))
    conn.execute("SELECT messages.maintain()")
    assert "orders" not in str(run(conn, verbs.metrics()))


def test_names_and_labels_follow_the_conventions_of_prometheus(conn: Connection, orders: str) -> None:
    allowed = {"queue", "state", "result", "check", "severity"}
    for family in parsed(conn).values():
        assert re.fullmatch(r"pgqueue(_[a-z]+)+", family.name)
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert set(sample.labels) <= allowed
    assert not re.search(r"_(ms|millis|minutes|hours|percent)\b", " ".join(exported(conn)))


def test_the_number_of_series_is_bounded_and_the_rest_is_summed_up(conn: Connection, queue: Queue) -> None:
    for name in [f"q{number}" for number in range(12)] + ["other"]:
        run(conn, verbs.publish(queue(name), 1))
    note(conn)
    found = parsed(conn, max_queues=3)
    named = [s.labels["queue"] for s in found["pgqueue_published_messages"].samples]
    assert sorted(named) == ["other", "q0", "q1"]
    assert value(found, "pgqueue_unfinished_messages", queue="other", state="ready") == 11
    assert value(found, "pgqueue_published_messages_total", queue="other") == 11
    for most in (0, 3, 100):
        rows = run(conn, verbs.metrics(most))
        assert len(rows) <= PER_QUEUE * (most + 1) + COMMON + 10
        assert len({(row["metric"], str(row["labels"])) for row in rows}) == len(rows)
    only = run(conn, verbs.metrics(queue_names=["q7"], names=["pgqueue_dead_messages"]))
    assert sorted(row["labels"]["queue"] for row in only) == ["other", "q7"]


def test_health_and_the_metrics_use_the_same_words(conn: Connection, orders: str) -> None:
    said = {(one.check_name, one.severity) for one in run(conn, verbs.health())}
    samples = parsed(conn)["pgqueue_health_severity"].samples
    assert {(s.labels["check"], s.labels["severity"]) for s in samples if s.value == 1} == said


def test_a_database_that_is_away_is_down_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def look() -> Any:
        raise ConnectionFailed("the server is away", "Start it.")

    registry = exposition._registry(look)
    assert [(family.name, family.samples[0].value) for family in registry.collect()] == [("pgqueue_up", 0)]
    assert "no metrics: the server is away" in capsys.readouterr().err


def test_an_observer_reads_the_metrics_of_its_queues(conn: Connection, orders: str) -> None:
    conn.execute("CREATE ROLE scraper LOGIN")
    try:
        run(conn, verbs.create_queue("bills"))
        run(conn, verbs.grant_queue("orders", "scraper", "observe"))
        with psycopg.connect(conn.info.dsn, user="scraper", autocommit=True) as scraper:
            found = run(scraper, verbs.metrics())
        assert {row["labels"]["queue"] for row in found if "queue" in row["labels"]} == {"orders"}
    finally:
        conn.execute("DROP OWNED BY scraper")
        conn.execute("DROP ROLE scraper")


def test_the_collector_exports_what_the_program_does(conn: Connection, orders: str) -> None:
    rows = run(conn, verbs.metrics())
    collector = yaml.safe_load((FOLDER / "sql_exporter.collector.yml").read_text())["metrics"]
    for metric in collector:
        labels = metric.get("key_labels", [])
        same = [row for row in rows if row["metric"] == metric["metric_name"]]
        assert {row["kind"] for row in same} == {metric["type"]}
        assert metric["values"] == ["value"]
        with conn.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(metric["query"].encode()).fetchall()
            assert sorted(column.name for column in cursor.description or []) == sorted([*labels, "value"])
        expected = [{name: row["labels"][name] for name in labels} for row in same]
        assert sorted(str({name: row[name] for name in labels}) for row in found) == sorted(map(str, expected))
    assert {metric["metric_name"] for metric in collector} == {row["metric"] for row in rows}
    assert len(collector) == len({row["metric"] for row in rows})


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bpgqueue_\w+", expression))


def check_expression(expression: str, known: dict[str, set[str]]) -> None:
    """Check that each metric of an expression is exported, and each selector names labels that it has."""
    assert named(expression)
    assert named(expression) - set(known) == set()
    for metric, selector in re.findall(r"\b(pgqueue_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= known[metric]
    for opened, closed in ("()", "[]", "{}"):
        assert expression.count(opened) == expression.count(closed)
    # Prometheus takes no group that has one such rule: "vector matching only allowed between instant vectors".
    assert not re.search(r"\b\d[\d.]*\s*(?:[-+*/%^]|[<>=!]=?)\s*(?:on|ignoring)\b", expression)
    for metric in re.findall(r"(?:rate|increase)\((pgqueue_\w+)", expression):
        assert metric.endswith("_total")


def test_each_alert_asks_for_metrics_that_there_are(conn: Connection, orders: str) -> None:
    known = exported(conn)
    for rule in RULES:
        check_expression(rule["expr"], known)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[mhd]", rule["for"])
        assert "{{" not in rule["annotations"]["summary"] or "}}" in rule["annotations"]["summary"]
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


@pytest.fixture
def programs() -> Path:
    """The folder of prometheus and promtool."""
    found = prometheus.find()
    return found


@pytest.mark.prometheus
def test_promtool_takes_the_rules_and_the_metrics(programs: Path, conn: Connection, orders: str) -> None:
    rules = subprocess.run(
        [programs / "promtool", "check", "rules", "--lint=all", "--lint-fatal", FOLDER / "alerts.yml"],
        capture_output=True,
        text=True,
    )
    assert rules.returncode == 0, rules
    assert f"{len(RULES)} rules found" in rules.stdout
    # It reads the older format, in which the end is not marked, and a type says unknown in another way.
    text = exposition.as_text(run(conn, verbs.metrics()))
    older = re.sub(r"^# EOF\n|^# UNIT .*\n", "", text, flags=re.M)
    for name in re.findall(r"^# TYPE (\S+) counter$", older, re.M):
        older = re.sub(rf"^(# (?:HELP|TYPE)) {name} ", rf"\1 {name}_total ", older, flags=re.M)
    checked = subprocess.run([programs / "promtool", "check", "metrics"], input=older, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.prometheus
def test_prometheus_scrapes_the_metrics_and_evaluates_the_alerts_and_the_dashboard(
    programs: Path, conn: Connection, orders: str, tmp_path: Path
) -> None:
    server, thread = exposition.serve(lambda: run(conn, verbs.metrics()), "127.0.0.1", 0)
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "pgqueue", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data", "--log.level=error"]
    command = [programs / "prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=60) as client:

                def data(path: str, **query: str) -> Any:
                    try:
                        return client.get(path, params=query).json().get("data")
                    except (httpx.TransportError, ValueError):
                        return None  # it starts

                def rules() -> list[dict[str, Any]]:
                    groups = (data("/rules") or {}).get("groups", [])
                    return [rule for group in groups for rule in group["rules"]]

                until(lambda: (data("/query", query="pgqueue_up") or {}).get("result"))
                (target,) = data("/targets")["activeTargets"]
                assert (target["health"], target["lastError"]) == ("up", "")
                until(lambda: rules() and all(rule["health"] == "ok" for rule in rules()))
                assert len(rules()) == len(RULES)
                (ready,) = data("/query", query='pgqueue_unfinished_messages{queue="orders",state="ready"}')["result"]
                assert ready["value"][1] == "2"
                for panel in DASHBOARD["panels"]:
                    for asked in panel["targets"]:
                        expression = asked["expr"].replace("$queue", "orders").replace("$__rate_interval", "1m")
                        assert data("/query", query=expression) is not None, expression
        finally:
            process.terminate()
            process.wait(60)
            server.shutdown()
            thread.join(60)
            server.server_close()


def test_each_alert_leads_to_a_section_that_names_it() -> None:
    sections = dict(re.findall(r"^### (.+)\n\n((?:(?!^#).+\n?|\n)*)", PAGE, re.M))
    anchors = {re.sub(r"[^a-z0-9]+", "-", heading.lower()): text for heading, text in sections.items()}
    site = re.search(r"^site_url: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == f"{site[1]}how-to/monitoring/"
        assert f"`{rule['alert']}`" in anchors[anchor]


def test_the_dashboard_draws_metrics_that_there_are(conn: Connection, orders: str) -> None:
    known = exported(conn)
    drawn = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("stat", "table", "timeseries")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        for target in panel["targets"]:
            check_expression(target["expr"], known)
            drawn |= named(target["expr"])
    assert set(known) - drawn == {"pgqueue_up", "pgqueue_queues"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "queue"}
    assert re.fullmatch(r"label_values\((pgqueue_\w+), queue\)", variables["queue"]["query"]["query"])


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells


def test_the_page_has_each_metric(conn: Connection, orders: str) -> None:
    table = PAGE.partition("## Metrics")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(pgqueue_\w+)`", "\n".join(row for row in table.splitlines() if row[:1] == "|")))
    assert documented == set(exported(conn))
