"""The reference is whole: whatever is public has its place on a page."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue import core
from airflow_provider_pgqueue.cli.program import COMMANDS
from airflow_provider_pgqueue.core import errors
from airflow_provider_pgqueue.get_provider_info import get_provider_info
from tools import ROOT
from tools.site import commands, links, schema, verbs

Connection = psycopg.Connection[Any]
REFERENCE = ROOT / "docs" / "reference"


def described(page: str) -> set[str]:
    """Return what the page hands to mkdocstrings."""
    lines = (REFERENCE / page).read_text().splitlines()
    return {line.removeprefix("::: ") for line in lines if line.startswith("::: ")}


def provider_modules() -> set[str]:
    info = get_provider_info()
    kinds = (info[kind] for kind in ("operators", "sensors", "triggers", "hooks"))
    return {module for kind in kinds for entry in kind for module in entry["python-modules"]}


def test_every_class_that_airflow_discovers_has_its_place() -> None:
    classes = {
        f"{module}.{name}"
        for module in provider_modules()
        for name, member in vars(importlib.import_module(module)).items()
        if inspect.isclass(member) and member.__module__ == module and not name.startswith("_")
    }
    assert len(classes) > 10
    info = get_provider_info()
    others = {decorator["class-name"] for decorator in info["task-decorators"]} | {
        "airflow_provider_pgqueue.dispatch.get_messages",
        "airflow_provider_pgqueue.decorators.pgqueue.publish_task",
        "airflow_provider_pgqueue.assets.pgqueue.create_asset",
        "airflow_provider_pgqueue.operators.remedy.RemedyTask",
        "airflow_provider_pgqueue.operators.waiting.WaitingTask",
        *info["notifications"],
    }
    assert classes | others | set(info["queues"]) == described("airflow.md")


def test_every_name_of_the_face_has_its_place() -> None:
    names = {f"{core.__name__}.{name}" for name in core.__all__ if name != "verbs"}
    raised = {name for name in names if name.rpartition(".")[2] in vars(errors)}
    assert f"{core.__name__}.errors" in described("python.md")
    assert names - raised - described("python.md") == set()


@pytest.mark.spark
def test_every_name_of_the_face_of_spark_has_its_place() -> None:
    from airflow_provider_pgqueue import spark

    assert set(spark.__all__) <= {name.rpartition(".")[2] for name in described("spark-jobs.md")}


def test_every_verb_has_its_place() -> None:
    listed = re.findall(r"\w+", " ".join(re.findall(r"members: \[(.*)\]", verbs.reference())))
    assert sorted([*listed, "Statement"]) == sorted(core.verbs.__all__)
    assert "<!-- generated: verbs -->" in (REFERENCE / "python.md").read_text()


def test_every_function_that_a_role_may_call_has_its_place_and_says_what_it_does(conn: Connection) -> None:
    rows = conn.execute(
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace AND EXISTS ("
        " SELECT FROM aclexplode(p.proacl) a WHERE a.grantee <> p.proowner AND a.privilege_type = 'EXECUTE')"
    )
    public = {str(name) for (name,) in rows}
    page = schema.describe(conn)
    assert len(public) > 50
    assert public - set(schema.headings(page)) == set()
    assert [one.name for one in schema.functions(conn) if not one.comment] == []
    assert "messages.lease(\n    queue_name text,\n    max_messages integer DEFAULT 1," in page


def test_internal_functions_have_no_place(conn: Connection) -> None:
    assert "check_batch" not in set(schema.headings(schema.describe(conn)))


def test_every_command_has_its_place_and_says_what_it_does() -> None:
    page = commands.reference()
    first_words = {context.command_path.split()[1] for context in commands.contexts()}
    assert first_words == set(COMMANDS)
    assert [path for name in COMMANDS if f"\n## {(path := f'pgqueue {name}')}" not in f"\n{page}"] == []
    assert [context.command_path for context in commands.contexts() if not context.command.help] == []


def test_the_addresses_are_the_same_everywhere() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    site = (ROOT / "mkdocs.yml").read_text()
    assert f"site_url: {urls['Documentation']}\n" in site
    assert f"repository: {urls['Source']}\n" in site
    integrations = get_provider_info()["integrations"]
    assert {entry["external-doc-url"] for entry in integrations} == {urls["Documentation"]}


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../sql/README.md#install", "https://x/sql/README.md#install"),
        ("how-to/operations.md", "how-to/operations.md"),
        ("https://example.com", "https://example.com"),
    ],
)
def test_links_out_of_the_pages_lead_to_the_repository(link: str, expected: str) -> None:
    assert links.to_repository(f"[a]({link})", "docs/index.md", ROOT, "https://x") == f"[a]({expected})"


def test_a_link_that_leads_nowhere_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    links.to_repository("[a](../nowhere.py)", "docs/index.md", ROOT, "https://x")
    assert caplog.messages == ["docs/index.md links to ../nowhere.py, which does not exist"]


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert [file.name for file in folder.glob("0*.md") if f"({file.name})" not in listed] == []
