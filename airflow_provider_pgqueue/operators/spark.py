"""Runs a pipeline of the queue on Spark."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psutil
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, check_names, json_object, optional, text, texts, truth
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import QueueTask

try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'{error.name} is not installed. Install it with: pip install "airflow-provider-pgqueue[spark]"',
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from airflow.sdk import Context

_SPARK: Final = Path(__file__).parents[1] / "spark"
_SUMMARY_FILE: Final = "PGQUEUE_SUMMARY"
_ABOUT: Final = "about"  # what the driver records next to the summary
_OWN: Final = {"run_id": "run_id", "dsn": "pgqueue_conn_id"}  # arguments of pipelines, and what they are here
_RUN_ID: Final = "{{ dag.dag_id }}/{{ run_id }}/{{ task.task_id }}/{{ ti.map_index }}"
_LONGEST_RUN_ID: Final = 250  # characters that messages.pipeline_run takes


def _arguments(value: Any) -> str | None:
    """Check the arguments of a pipeline: neither the name of the run nor the connection is among them."""
    if fix := json_object(value):
        return fix
    if not all(isinstance(name, str) for name in value):
        return "Name each argument by a text."
    given = {name.replace("-", "_") for name in value}
    own = [f"Leave out {name}, and give the operator {instead}." for name, instead in _OWN.items() if name in given]
    return own[0] if own else None


def _takes(pipeline: Any) -> list[str]:
    """Return the arguments of a pipeline, by the text of its module, which would import Spark; none for no pipeline."""
    for path in _SPARK.joinpath("pipelines").rglob(f"{pipeline}.py") if pipeline else ():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == pipeline:
                return [one.arg for one in node.args.kwonlyargs]
    return []


def _pipeline(value: Any) -> str | None:
    good = isinstance(value, str) and value.isidentifier() and "run_id" in _takes(value)
    return None if good else "Give drain, export or repair."


def _names(value: Any) -> str | None:
    return None if value in ([], ()) else texts(value)


class PgQueueSparkOperator(QueueTask, SparkSubmitOperator):
    """Submits one of the pipelines (`drain`, `export`, `repair`) and returns its summary.

    It is a `SparkSubmitOperator`: `conf`, `py_files`, `driver_memory`, `num_executors` and the rest mean the same, and
    `conn_id` names the Spark connection: of type `spark`, with host `local[2]` or host `spark://master` and port 7077.
    The driver runs next to the task. It gets the connection of the queue in its environment, never in an argument, and
    hands it to the executors inside their tasks.

    A run is carried out once: the task's next try continues with what is left, and once the run is finished it returns
    the same summary without starting Spark. To do it again, give another `run_id`. With `dry_run` in the arguments it
    counts, each time anew, changes nothing and leaves the run to be done.

    When Airflow stops the task, a driver next to it gets SIGTERM first: its tasks release the messages that they have
    not begun. After 3.5 s what is left of Spark is killed, because Airflow kills the task after 5.

    :param pipeline: the name, as in `python -m airflow_provider_pgqueue.spark --help`.
    :param arguments: its arguments, in the words of Python and of the command line: `{"queue": "orders", "function":
        "packing:pack", "parallelism": 4}`. True is a flag, a list repeats the option.
    :param run_id: the name of the run; by default made of the DAG run and the task. A name of more than 250 characters
        is cut, and ends with a hash.
    :param fail_on: names in the summary that fail the task, without a retry, if their value is neither 0 nor None. By
        default `stopped`, which says why a pipeline ended before all was done: a canary that died again, a drain that
        gave up; and `died`, the messages of a drain that died and that its function did not reject. Others are, for
        example, `raised` and `invalid` of a repair, and `ready` of a drain.
    :param send_connection: False where the driver finds the database by itself, through `PGQUEUE_DSN` or a service
        file. Needed for YARN, Kubernetes and deploy mode `cluster`, where Spark would show the environment in its
        arguments.
    """

    template_fields: Sequence[str] = ("arguments", "run_id", "pgqueue_conn_id", "conf", "py_files", "name")
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "pipeline": _pipeline,
        "arguments": optional(_arguments),
        "run_id": text,
        "fail_on": _names,
        "send_connection": truth,
    }

    def __init__(
        self,
        *,
        pipeline: str,
        arguments: Mapping[str, Any] | None = None,
        run_id: str = _RUN_ID,
        fail_on: Sequence[str] = ("stopped", "died"),
        send_connection: bool = True,
        name: str = "pgqueue",
        # What SparkSubmitOperator takes: a wrong name is refused when the DAG is parsed.
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pipeline = pipeline
        self.arguments = arguments
        self.run_id = run_id
        self.fail_on = fail_on
        self.send_connection = send_connection
        self.check_written()

    def check_written(self) -> None:
        """Check the arguments as they were written, those of the pipeline too."""
        super().check_written()
        if isinstance(self.arguments, Mapping):
            given = [name.replace("-", "_") for name in self.arguments]
            check_names(self.pipeline, given, [name for name in _takes(self.pipeline) if name not in _OWN])

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # the base class returns nothing
        """Submit the pipeline unless its run had finished, wait for it, return what it recorded as its summary."""
        queue = PgQueueHook(self.pgqueue_conn_id)
        self.run_id = _shortened(self.run_id)
        self.application = str(_SPARK / "__main__.py")
        self.application_args = [self.pipeline, *_options(self.arguments or {}), "--run-id", self.run_id]
        if "--dry-run" in self.application_args:
            return self._dry_run(context, queue)
        self._hook = self._hook_with_environment(queue)
        if (summary := self._summary(queue)) is not None:
            self.log.info("Run %s of %s had finished: nothing is done again", self.run_id, self.pipeline)
            return self._checked(summary)
        try:
            self._submit(context)
        except AirflowException:
            # A drain in which messages died ends with status 1, too.
            if (summary := self._summary(queue)) is None:
                raise
            return self._checked(summary)
        if (summary := self._summary(queue)) is None:
            raise AirflowException(f"{self.pipeline} ended without a summary of run {self.run_id!r}; see the log above")
        return self._checked(summary)

    def on_kill(self) -> None:
        """Stop the driver: by SIGTERM, for which it has 3.5 seconds, then as every SparkSubmitOperator does."""
        drivers = self._drivers()
        for driver in drivers:
            with suppress(psutil.NoSuchProcess):
                driver.terminate()
        psutil.wait_procs(drivers, timeout=TUNING.last_moment)
        super().on_kill()

    def _drivers(self) -> list[psutil.Process]:
        """Return the Python process that spark-submit has started, if it runs on this machine."""
        submitted = self._hook._submit_sp if self._hook else None
        if submitted is None or submitted.poll() is not None:
            return []
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(submitted.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    if child.cmdline()[1:2] == [self.application]:
                        found.append(child)
        return found

    def _checked(self, summary: dict[str, Any]) -> dict[str, Any]:
        if bad := {name: summary[name] for name in self.fail_on if summary.get(name)}:
            # A retry finds the run finished, and returns the same.
            raise AirflowFailException(f"run {self.run_id!r} of {self.pipeline} did not do all: {bad}")
        return summary

    def _dry_run(self, context: Context, queue: PgQueueHook) -> dict[str, Any]:
        """Submit what is not even recorded as a run: the driver, next to the task, leaves its summary in a file."""
        with TemporaryDirectory() as folder:
            path = Path(folder, "summary.json")
            self._hook = self._hook_with_environment(queue, {_SUMMARY_FILE: str(path)})
            if _hands_on_environment(self._hook):
                raise AirflowException(
                    f"a dry run on {self._hook._connection['master']} could not hand over its summary to the task. "
                    "Submit it in deploy mode client, to a Spark that is local or standalone."
                )
            self._submit(context)
            summary: dict[str, Any] = json.loads(path.read_bytes())
        return self._checked(summary)

    def _submit(self, context: Context) -> None:
        try:
            super().execute(context)
        finally:
            # The hook leaves the output of its process open.
            process = self._hook._submit_sp if self._hook else None
            if process is not None and process.stdout is not None:
                process.stdout.close()

    def _summary(self, queue: PgQueueHook) -> dict[str, Any] | None:
        """Return the summary if the run finished. The driver begins it, perhaps under a login of its own."""
        recorded = queue.run(verbs.run_summary(self.run_id, self.pipeline))
        return recorded and {name: value for name, value in recorded.items() if name != _ABOUT}

    def _hook_with_environment(self, queue: PgQueueHook, more: dict[str, str] | None = None) -> SparkSubmitHook:
        # Set for this time only: what stays in env_vars is shown on the page of the task.
        given = self.env_vars
        self.env_vars = _environment() | (given or {}) | (more or {})
        if self.send_connection:
            self.env_vars["PGQUEUE_DSN"] = queue.conninfo()
        try:
            hook = self._get_hook()
        finally:
            self.env_vars = given
        if self.send_connection and _hands_on_environment(hook):
            raise AirflowException(
                f"{hook._connection['master']} would put the connection of the queue into arguments that everybody "
                "sees. Let the driver find it by PGQUEUE_DSN or a service file, and set send_connection=False. "
                f"Airflow takes yarn if there is no connection {self._conn_id!r}."
            )
        return hook


def _hands_on_environment(hook: SparkSubmitHook) -> bool:
    """Return whether spark-submit gets the environment in arguments, for a driver that is not its own process."""
    return bool(hook._is_yarn or hook._is_kubernetes or hook._connection["deploy_mode"] == "cluster")


def _shortened(run_id: str) -> str:
    if len(run_id) <= _LONGEST_RUN_ID:
        return run_id
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:32]
    return f"{run_id[: _LONGEST_RUN_ID - 33]}-{digest}"


def _environment() -> dict[str, str]:
    """Let spark-submit, the driver and local executors be those of the Python that runs the task."""
    here = str(Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
    }


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        several = value if isinstance(value, list | tuple) else [value]
        if not several or (several is value and None in several):
            raise InvalidArgument(f"argument {name} is {value!r}", "Give values, or leave it out for all.")
        for each in several:
            match each:
                case None | False:
                    pass
                case True:
                    yield option
                case _:
                    yield from (option, str(each))
