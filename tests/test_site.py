"""The reference is whole: whatever is public has its place on a page."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from airflow_provider_pgqueue import core
from airflow_provider_pgqueue.cli.program import COMMANDS
from airflow_provider_pgqueue.core import errors
from airflow_provider_pgqueue.get_provider_info import get_provider_info
from tools import ROOT
from tools.site import classes as classes_of_airflow
from tools.site import commands, links, schema, verbs
from tools.site.verbs import names as verb_names

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
        if inspect.isclass(member) and not name.startswith("_")
        # Dispatch has a room of its own, and its classes have their names in the rooms where Airflow looks.
        if member.__module__ == module
        or member.__module__ == f"airflow_provider_pgqueue.dispatch.{module.split('.')[1][:-1]}"
    } - {f"airflow_provider_pgqueue.operators.publish.{base}" for base in ("PublishTask", "Published")}
    assert len(classes) > 10
    info = get_provider_info()
    others = {decorator["class-name"] for decorator in info["task-decorators"]} | {
        "airflow_provider_pgqueue.dispatch.get_messages",
        "airflow_provider_pgqueue.decorators.pgqueue.publish_task",
        "airflow_provider_pgqueue.assets.pgqueue.create_asset",
        *info["notifications"],
    }
    assert classes | others | set(info["queues"]) == classes_of_airflow.names(classes_of_airflow.PAGE.read_text())


def test_the_reference_of_airflow_has_each_argument_as_it_is_now() -> None:
    page = classes_of_airflow.PAGE.read_text()
    assert classes_of_airflow.current(page) == page, "make golden writes it anew"
    assert "| `min_messages` | `1` | how many ready messages to wait for. |" in page
    assert re.findall(r"^.*\|  \|$", page, re.M) == []


def test_every_name_of_the_face_has_its_place() -> None:
    names = {f"{core.__name__}.{name}" for name in core.__all__ if name != "verbs"}
    raised = {name for name in names if name.rpartition(".")[2] in vars(errors)}
    assert f"{core.__name__}.errors" in described("python.md")
    assert names - raised - described("python.md") == set()


@pytest.mark.spark
def test_every_name_of_the_face_of_spark_has_its_place() -> None:
    from airflow_provider_pgqueue import spark

    assert set(spark.__all__) <= {name.rpartition(".")[2] for name in described("spark-source.md")}


def test_every_verb_has_its_place() -> None:
    listed = re.findall(r"\w+", " ".join(re.findall(r"members: \[(.*)\]", verbs.reference())))
    assert sorted(listed) == verb_names()
    assert "<!-- generated: verbs -->" in (REFERENCE / "python.md").read_text()


def test_every_function_that_a_role_may_call_has_its_place_and_says_what_it_does(conn: Connection) -> None:
    rows = conn.execute(
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace AND EXISTS ("
        " SELECT FROM aclexplode(p.proacl) a WHERE a.grantee <> p.proowner AND a.privilege_type = 'EXECUTE')"
    )
    public = {str(name) for (name,) in rows}
    page = schema.describe(conn)
    assert len(public) > 50
    assert public - set(schema.headings(page)) == schema.ASKED_BY_THE_PACKAGE & public
    assert schema.ASKED_BY_THE_PACKAGE - public == set()
    first = ["Publish", "Lease", "Queues"]
    assert re.findall(r"^## (.*)", page, re.M)[:3] == first
    assert [one.name for one in schema.functions(conn) if not one.comment] == []
    assert "messages.lease(\n    queue_name text,\n    max_messages integer DEFAULT 1," in page


def test_internal_functions_have_no_place(conn: Connection) -> None:
    assert {"check_batch", "stage_publish", "run_holder"} & set(schema.headings(schema.describe(conn))) == set()


def test_every_command_has_its_place_and_says_what_it_does() -> None:
    page = commands.reference()
    first_words = {context.command_path.split()[1] for context in commands.contexts()}
    assert first_words == set(COMMANDS)
    assert [path for name in COMMANDS if f"\n### {(path := f'pgqueue {name}')}" not in f"\n{page}"] == []
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
        ("decisions/README.md", "https://x/docs/decisions/README.md"),
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


def test_no_decision_has_more_than_forty_lines() -> None:
    decisions = {file.name: file.read_text() for file in (ROOT / "docs" / "decisions").glob("0*.md")}
    assert {name: len(text.splitlines()) for name, text in decisions.items() if len(text.splitlines()) > 40} == {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, with all that fails a build of it."""
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
    build(config)
    return folder


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("reprocess", "how-to/dead-messages/"),
        ("retry", "how-to/broken-handlers/"),
        ("DLQ", "how-to/dead-messages/"),
        ("ack", "how-to/consume/"),
        ("sensor", "how-to/consume/"),
        ("install airflow", "tutorial/quickstart/"),
    ],
)
def test_a_search_finds_the_page_that_answers(site: Path, words: str, page: str) -> None:
    """Lunr is not here: what decides is that the index weighs the words of a page a million times its text."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert index["config"]["fields"]["tags"]["boost"] >= 1e6
    found = {one["location"].partition("#")[0] for one in index["docs"] if words in one.get("tags", [])}
    assert found == {page}
    assert [one["location"] for one in index["docs"] if one["location"].startswith("decisions/")] == []


def test_a_page_with_generated_parts_leads_from_github_to_itself_on_the_site(site: Path) -> None:
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    for page in REFERENCE.glob("*.md"):
        text = page.read_text()
        generated = "<!-- generated: " in text or re.search(r"^::: ", text, re.M) is not None
        notes = re.findall(r"^> GitHub does not show .*\((.*)\)", text, re.M)
        assert notes == [f"{address}reference/{page.stem}/"] * generated
        assert "GitHub does not show" not in (site / "reference" / page.stem / "index.html").read_text()


def test_every_diagram_is_a_picture_that_the_site_draws_too() -> None:
    """The theme would load Mermaid from elsewhere."""
    assert [page.name for page in (ROOT / "docs").rglob("*.md") if "```mermaid" in page.read_text()] == []
