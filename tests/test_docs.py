"""What the documentation says is true: links lead somewhere, named tests exist, code runs."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from packaging.requirements import Requirement
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgqueue.core import Consumer
from tools import ROOT
from tools.chapters import functions

Connection = psycopg.Connection[Any]
OTHERS = [
    ROOT / place
    for place in ("sql/README.md", "tests/README.md", "tests/words.md", "benchmarks/results/comparisons.md")
]
PAGES = sorted([*ROOT.glob("*.md"), *OTHERS, *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"(?:^ *<!-- (?P<mark>[^\n]*) -->\n)?^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$", re.M | re.S)
_LINK = re.compile(r"\[(?P<label>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_TEST = re.compile(r"\btest_\w+\b(?!\.py)")
_PROOF = re.compile(r"<!-- (?P<file>tests/\S+\.py)::(?P<test>test_\w+) -->")
_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|[^;])+;", re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block; `mark` is the comment right above it."""

    page: str
    mark: str
    language: str
    code: str


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def blocks(language: str) -> list[Block]:
    found = [(page, block) for page in PAGES for block in _FENCE.finditer(page.read_text())]
    return [
        Block(name(page), block["mark"] or "", language, dedent(block["code"]))
        for page, block in found
        if block["language"] == language
    ]


def of_page(page: str, language: str, mark: str = "") -> list[str]:
    return [one.code for one in blocks(language) if one.page == page and one.mark == mark]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[tuple[str, str]]:
    found = [(link["label"], link["target"]) for link in _LINK.finditer(prose(page))]
    return [(label, target) for label, target in found if not target.startswith(("http://", "https://"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for _, target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_are_named_exist_where_the_link_says(page: Path) -> None:
    text, missing = prose(page), []
    for proof in _PROOF.finditer(text):
        if not _defines(ROOT / proof["file"], proof["test"]):
            missing.append(proof[0])
    text = _PROOF.sub("", text)
    for label, target in links(page):
        test, file = label.strip("`"), page.parent / target
        if _TEST.fullmatch(test) and not _defines(file, test):
            missing.append(label)
    linked = {label.strip("`") for label, _ in links(page)}
    assert missing == []
    assert set(_TEST.findall(text)) - linked == set()


def _defines(file: Path, test: str) -> bool:
    return file.is_file() and f"def {test}(" in file.read_text()


def test_each_guarantee_each_promise_and_each_answer_names_its_test() -> None:
    guarantees = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    rows = re.findall(r"^\| \d+ \|.*$", guarantees, re.M)
    promises = re.findall(r"^\d\. .*?-->$", (ROOT / "README.md").read_text(), re.M | re.S)
    answers = re.split(r"^### ", (ROOT / "docs" / "explanation" / "faq.md").read_text(), flags=re.M)[1:]
    assert [int(row.split()[1]) for row in rows] == list(range(1, len(rows) + 1))
    assert f"[{len(rows)} guarantees]" in (ROOT / "README.md").read_text()
    assert len(promises) == 5
    assert len(answers) > 10
    assert [text for text in rows + promises + answers if not _TEST.search(text)] == []
    assert [test for promise in promises for test in _TEST.findall(promise) if test not in guarantees] == []


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.page)
def test_python_blocks_run_as_dag_files(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks that begin with the name of a file are the modules whose functions the DAGs name.
    for code in of_page(block.page, "python"):
        if name := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / name[1]).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(block.code, block.page, "exec"), {"__name__": "documented_dag"})


@pytest.mark.parametrize("page", sorted({block.page for block in blocks("sql") if block.mark == "runnable"}))
def test_sql_blocks_marked_runnable_run_in_their_order(page: str, conn: Connection) -> None:
    if page == "docs/tutorial/quickstart.md":  # its setup task has created the queues
        conn.execute("SELECT messages.create_queue('orders')")
    for code in of_page(page, "sql", "runnable"):
        for statement in _STATEMENT.findall(code):
            conn.execute(statement.encode())


def test_the_dead_message_of_the_quickstart_is_requeued_and_dismissed_in_this_order(conn: Connection) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    publish, _, requeue, dismiss = of_page("docs/tutorial/quickstart.md", "sql", "runnable")
    conn.execute(publish.encode())
    for code in (requeue, dismiss):
        conn.execute(
            "SELECT messages.archive(lock_token, ARRAY[id], result => CASE WHEN message ? 'no' THEN 'rejected'"
            " ELSE 'success' END) FROM messages.lease('orders', 10)"
        )
        found = [conn.execute(statement.encode()).fetchall() for statement in _STATEMENT.findall(code)]
        assert [len(rows) for rows in found] == [1] * len(found)
    assert conn.execute("SELECT dead FROM messages.status('orders')").fetchone() == (0,)


def test_the_quickstart_shows_what_its_statements_return(conn: Connection) -> None:
    page = "docs/tutorial/quickstart.md"
    (example,) = (code for code in of_page(page, "python") if "def handle(" in code)
    written: dict[str, Any] = {"__name__": "documented_dag"}
    exec(compile(example, page, "exec"), written)
    conn.execute("SELECT messages.create_queue('orders')")
    returned = []
    for code in of_page(page, "sql", "runnable")[:3]:
        for statement in _STATEMENT.findall(code):
            cursor = conn.execute(statement.encode())
            head = [column.name for column in cursor.description or ()]
            returned.append([head, *(["" if cell is None else str(cell) for cell in row] for row in cursor)])
        Consumer(queue_name="orders", handle=written["handle"]).drain(conn)
    tables = "\n".join(code for code in of_page(page, "text") if "-+-" in code).split("\n\n")
    shown = [
        [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line[0] != "-"]
        for table in tables
    ]
    assert shown == returned[2:]


def test_what_the_examples_of_queues_say_of_their_results_is_true(conn: Connection) -> None:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for code in of_page("docs/reference/queues.md", "sql", "runnable"):
        for statement in _STATEMENT.findall(code):
            cursor = conn.execute(statement.encode())
            found[" ".join(statement.split())] = cursor.fetchall() if cursor.description else []
    (alone,) = (rows for statement, rows in found.items() if "lease('steps'" in statement)
    assert alone == [("reserve",)]
    (dropped,) = (rows for statement, rows in found.items() if "drop_queue(" in statement)
    assert dropped == [(0,)]
    assert not any("drop_queue('orders'" in statement or "purge_queue('orders'" in statement for statement in found)


def test_the_program_of_the_python_reference_packs_its_orders(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, variable in {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}.items():
        monkeypatch.setenv(variable, str(conninfo_to_dict(dsn)[name]))
    (code,) = of_page("docs/reference/python.md", "py", "program")
    exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["packing order 7", "{'success': 1, 'rejected': 1}", "packing order 8"]
    assert conn.execute("SELECT count(*) FROM messages.message_archive").fetchone() == (3,)


def test_the_loop_of_the_page_about_limits_keeps_the_rate_of_each_key(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, variable in {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}.items():
        monkeypatch.setenv(variable, str(conninfo_to_dict(dsn)[name]))
    page = "docs/how-to/limits-and-fair-share.md"
    (create,) = (code for code in of_page(page, "sql", "runnable") if "unnest" in code)
    conn.execute(create.encode())
    conn.execute("SELECT messages.publish('calls_7', '{\"invoice\": 3}') FROM generate_series(1, 20)")
    conn.execute(
        "SELECT messages.alter_queue('calls_' || key, rate_period => '1 hour') FROM unnest('{7,8}'::int[]) key"
    )
    (loop,) = of_page(page, "py", "a rate for each key")
    for calls in (11, 0):  # ten of customer 7, which is a burst, and one of customer 8
        exec(compile(loop, "program.py", "exec"), {"__name__": "__main__"})
        assert len(capsys.readouterr().out.splitlines()) == calls
    assert conn.execute("SELECT queue_name, count(*) FROM messages.message GROUP BY 1").fetchall() == [("calls_7", 11)]


def test_the_handler_of_the_page_about_long_work_books_once(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, variable in {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}.items():
        monkeypatch.setenv(variable, str(conninfo_to_dict(dsn)[name]))
    conn.execute(
        "SELECT messages.create_queue('shipping', backoff_first => '1 day'), messages.publish('shipping', '{}')"
    )
    conn.execute("CREATE TABLE stock AS SELECT 10 AS parcels")
    (code,) = of_page("docs/how-to/consume.md", "py", "long work")
    exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})  # no order_id: no label
    assert capsys.readouterr().out == "{'retried': 1}\n"
    conn.execute("UPDATE messages.message SET message = '{\"order_id\": 7}', visible_at = clock_timestamp()")
    exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "label of order 7\n{'success': 1}\n"
    assert conn.execute("SELECT parcels FROM stock").fetchall() == [(9,)]


_ROW = re.compile(r"^\| `(\w+)` \|.*", re.M)
_BOUND = re.compile(r"check_(?:duration|number)\('(\w+)', (?:\w+\.)?\w+, '?([^',]+)'?, '?([^',)]+)'?\)")


@pytest.mark.parametrize(
    ("heading", "function", "checks"),
    [
        ("Policy", "create_queue", ["alter_queue"]),
        ("Publish", "publish", ["check_publish", "publish_deduplicated"]),
        ("Lease", "lease", ["check_lease"]),
    ],
)
def test_the_tables_of_queues_have_each_argument_with_its_limits(
    conn: Connection, heading: str, function: str, checks: list[str]
) -> None:
    page = (ROOT / "docs" / "reference" / "queues.md").read_text()
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", page, re.M | re.S)
    rows = {found[1]: found[0].replace(",", "") for found in _ROW.finditer(section)}
    found = conn.execute("SELECT proargnames[:pronargs] FROM pg_proc WHERE proname = %s", [function]).fetchone()
    assert set(rows) == set(found[0]) - {"queue_name", "message"}
    text = "".join(functions()[name].text for name in checks)
    bounds = {name: (low, high) for name, low, high in _BOUND.findall(text)}
    assert bounds
    for name, (low, high) in bounds.items():
        assert f"| {low} to {high.removesuffix('::bigint')} |" in rows[name], rows[name]


def test_the_example_of_the_readme_wakes_and_packs_the_order(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.setenv("AIRFLOW_CONN_PGQUEUE_DEFAULT", dsn)
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    conn.execute("SELECT messages.create_queue('orders')")
    (example,), publish = of_page("README.md", "python"), of_page("README.md", "sql")[0]
    documented: dict[str, Any] = {"__name__": "documented_dag"}
    exec(compile(example, "README.md", "exec"), documented)

    conn.execute(publish.encode())
    notification = asyncio.run(asyncio.wait_for(_first_event(documented["arrived"].trigger), 20))
    ti = SimpleNamespace(dag_id="pack_orders", run_id="r", task_id="pack", map_index=-1, try_number=1, max_tries=1)
    counts = documented["dag"].get_task("pack").execute({"ti": ti})

    assert (notification["queue_name"], notification["ready"]) == ("orders", 1)
    assert counts == {"success": 1}
    assert "of orders" in capsys.readouterr().out
    assert conn.execute("SELECT message, result FROM messages.message_archive").fetchall() == [
        ({"order_id": 7}, "success")
    ]


async def _first_event(trigger: Any) -> Any:
    async with aclosing(trigger.run()) as events:
        return (await anext(events)).payload


Run = Callable[[str, int], list[Any]]


@pytest.fixture
def run_dag(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the tasks of a DAG of a page, in their order: `run_dag(page, place)`; returns their results."""
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.setenv("AIRFLOW_CONN_PGQUEUE_DEFAULT", dsn)
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)

    def run(page: str, place: int) -> list[Any]:
        code = of_page(page, "python")[place].replace("with DAG(", "with (dag := DAG(", 1).replace("):\n", ")):\n", 1)
        written: dict[str, Any] = {"__name__": "documented_dag"}
        exec(compile(code, page, "exec"), written)
        dag = written["dag"]
        return [task.execute(_context(task)) for task in dag.topological_sort()]

    return run


def _context(task: Any) -> dict[str, Any]:
    ti = SimpleNamespace(dag_id=task.dag_id, run_id="r", task_id=task.task_id, map_index=-1, try_number=1, max_tries=1)
    return {"ti": ti, "task_instance": ti}


def test_the_three_doors_of_the_first_page_lead_in(conn: Connection, run_dag: Run) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    published, packed = run_dag("docs/index.md", 0)
    assert (published["published"], packed) == (1, {"success": 1})
    conn.execute("SELECT messages.publish('orders', '{}')")
    assert run_dag("docs/index.md", 1)[1] == {"success": 1}
    conn.execute("SELECT messages.publish('orders', '{}')")
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'failed') FROM messages.lease('orders')")
    assert run_dag("docs/index.md", 2)[0]["requeued"] == 1


def test_a_door_has_six_lines() -> None:
    doors = of_page("docs/index.md", "python")
    assert len(doors) == 3
    assert [code for code in doors if len(re.findall(r"^.*\S", code, re.M)) > 6] == []


def test_the_example_of_the_readme_has_at_most_ten_lines() -> None:
    code = of_page("README.md", "sql")[0] + of_page("README.md", "python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def raw(step: str) -> bytes:
    (code,) = of_page("sql/README.md", "sql", f"raw: {step}")
    return code.strip().rstrip(";").encode()


@pytest.fixture
def worker(connect: Callable[..., Connection]) -> psycopg.RawCursor[Any]:
    """A cursor that takes the statements of sql/README.md as they are, with $1 and $2."""
    return psycopg.RawCursor(connect())


def test_a_worker_that_follows_the_raw_conventions_archives_its_message_once(
    conn: Connection, worker: psycopg.RawCursor[Any]
) -> None:
    worker.execute(raw("listen"))
    (published,) = conn.execute(raw("publish")).fetchone() or (None,)
    (notified,) = [int(note.payload) for note in worker.connection.notifies(timeout=5, stop_after=1)]
    ((looked,),) = worker.execute(raw("look")).fetchall()
    body, fence = worker.execute(raw("lock"), [notified]).fetchone() or (None, None)

    assert notified == looked == published
    assert body == {"order_id": 7}
    assert conn.execute("SELECT id FROM messages.lease('default')").fetchall() == []
    assert worker.execute(raw("lock"), [notified]).fetchall() == []
    assert worker.execute(raw("finish"), [notified, fence, "success", None]).fetchall() == [(notified,)]
    assert worker.execute(raw("finish"), [notified, fence, "success", None]).fetchall() == []
    assert conn.execute("SELECT id, result, attempts FROM messages.message_archive").fetchall() == [
        (notified, "success", 1)
    ]
    assert conn.execute("SELECT count(*) FROM messages.message").fetchone() == (0,)


def test_a_raw_worker_that_was_too_slow_finishes_nothing(conn: Connection, worker: psycopg.RawCursor[Any]) -> None:
    (published,) = conn.execute(raw("publish")).fetchone() or (None,)
    _, fence = worker.execute(raw("lock"), [published]).fetchone() or (None, None)
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp()")
    leases = (conn.execute("SELECT id, attempts FROM messages.lease('default')").fetchall() for _ in range(1000))
    assert next(filter(None, leases)) == [(published, 2)]
    assert worker.execute(raw("finish"), [published, fence, "success", None]).fetchall() == []
    assert conn.execute("SELECT count(*) FROM messages.message_archive").fetchone() == (0,)


def test_the_grants_of_the_sql_readme_are_enough_for_a_raw_worker(conn: Connection) -> None:
    grants = next(code for code in of_page("sql/README.md", "sql") if "ON messages.message TO worker" in code)
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE ROLE worker")
        conn.execute(grants.encode())
        conn.execute("SET LOCAL ROLE worker")
        cursor = psycopg.RawCursor(conn)
        (published,) = cursor.execute(raw("publish")).fetchone() or (None,)
        _, fence = cursor.execute(raw("lock"), [published]).fetchone() or (None, None)
        assert cursor.execute(raw("finish"), [published, fence, "rejected", "no"]).fetchall() == [(published,)]


def test_the_grants_of_the_sql_readme_are_enough_for_a_publisher(conn: Connection) -> None:
    grants = next(code for code in of_page("sql/README.md", "sql") if "TO shop" in code)
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE ROLE shop")
        conn.execute(grants.encode())
        conn.execute("SET LOCAL ROLE shop")
        conn.execute("SELECT messages.publish('default', '1'), messages.publish_batch('default', '[1]')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute("SELECT message FROM messages.message")


def test_each_error_code_of_the_sql_readme_is_the_one_that_python_knows() -> None:
    from airflow_provider_pgqueue.core import errors

    documented = dict(re.findall(r"^\| `(PQ\d+)` \|.*\| `(\w+)` \|$", (ROOT / "sql" / "README.md").read_text(), re.M))
    known = {code: kind.__name__ for code, kind in errors._BY_SQLSTATE.items() if code.startswith("PQ")}
    assert documented == known


def test_each_file_and_folder_of_sql_is_described() -> None:
    text = (ROOT / "sql" / "README.md").read_text()
    present = {path.name + ("/" if path.is_dir() else "") for path in (ROOT / "sql").iterdir()} - {"README.md"}
    assert {entry for entry in present if f"| `{entry}` |" not in text} == set()


def test_pip_refuses_airflow_2() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["airflow"]
    (airflow,) = (one for one in map(Requirement, extra) if one.name == "apache-airflow")
    assert [version for version in ("2.11.0", "3.1.7") if version in airflow.specifier] == []
    assert "3.1.8" in airflow.specifier


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {target for page in PAGES for target in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.M)}
    assert named
    assert named - targets == set()
