"""The face of the pipelines and their one command line: one signature, one word per concept."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue import spark as face
from airflow_provider_pgqueue.core import PgQueueError
from airflow_provider_pgqueue.spark import __main__ as command_line
from airflow_provider_pgqueue.spark import drain, register
from airflow_provider_pgqueue.spark.__main__ import command

PIPELINES = tuple(getattr(face, name) for name in command_line.PIPELINES)
# What each pipeline has.
EACH = ("spark", "run_id", "dsn", "parallelism")
OTHER_WORDS = {
    "begin", "connections", "database", "end", "end_at", "first_at", "from_", "max_connections", "options",
    "queue_name", "queue_names", "tasks", "to",
}  # fmt: skip


def arguments(pipeline: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(pipeline).parameters)


def test_the_face_has_the_pipelines_and_what_goes_with_them() -> None:
    assert sorted(face.__all__) == sorted([*command_line.PIPELINES, "register", "read_export"])
    assert all(callable(getattr(face, name)) for name in face.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        face.nothing  # noqa: B018


@pytest.mark.parametrize("name", EACH)
def test_a_word_is_the_same_argument_in_each_job(name: str) -> None:
    having = [arguments(pipeline)[name] for pipeline in PIPELINES]
    assert len({(each.kind, each.annotation, each.default) for each in having}) == 1


def test_all_but_the_session_is_given_by_name_and_nothing_has_a_second_name() -> None:
    for pipeline in PIPELINES:
        kinds = {name: argument.kind for name, argument in arguments(pipeline).items()}
        assert kinds.pop("spark") is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}
        assert not OTHER_WORDS & set(kinds)


@pytest.mark.parametrize("name", command_line.PIPELINES)
def test_the_help_of_a_pipeline_says_all_its_words_but_the_connection(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.run([name, "--help"]) == 0
    help_ = capsys.readouterr().out
    words = arguments(getattr(face, name)).keys() - {"spark", "dsn"}
    assert all(f"--{word.rstrip('_').replace('_', '-')} " in help_ for word in words)
    assert "--dsn" not in help_
    first = str(inspect.getdoc(getattr(face, name))).partition("\n")[0]
    assert first in " ".join(help_.split())
    assert command_line.run(["--help"]) == 0
    assert f"{name} {first}" in " ".join(capsys.readouterr().out.split())
    described = [option for option in command(getattr(face, name)).params if isinstance(option, click.Option)]
    assert all(option.help or option.hidden for option in described)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["drain", "--queue", "orders"], "Missing option '--function'"),
        (["drain", "--queue", "orders", "--function", "x:y", "--lease-for", "soon"], "'soon' is not a duration"),
        (
            ["drain", "--queue", "orders", "--function", "x:y", "--give-up-after", "0", "--parallelism", "0"],
            "parallelism",
        ),
        (["repair", "--debug", "--function", "x:y", "--max-per-second", "fast"], "'fast' is not a valid float"),
        (["repair", "--function", "x:y", "--results", "success"], "'success' is not one of"),
        (["export", "--drop"], "Missing option '--target'"),
        (["exports"], "No such command 'exports'"),
    ],
)
def test_what_is_given_wrongly_is_refused_before_java_starts(
    given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.run(given) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("begin", [register, drain], ids=["register", "drain"])
def test_a_pyspark_of_another_version_than_its_spark_is_refused(
    begin: Callable[..., Any], session: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.7")
    given = {"queue": "orders", "function": "packing:pack"} if begin is drain else {}
    fix = r"PySpark is 4\.1\.7 and its Spark is 4\.2\.0\. .*pip install .* pyspark==4\.1\.7 pyspark-client==4\.1\.7"
    with pytest.raises(PgQueueError, match=fix):
        begin(session, dsn=dsn, **given)
