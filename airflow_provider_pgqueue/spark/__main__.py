"""The pipelines from a shell: `python -m airflow_provider_pgqueue.spark drain …`, or this file for spark-submit.

The words of the signature of a pipeline are the options of its command, and its docstring is the help.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import signal
import sys
import threading
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, NoReturn

# spark-submit starts this file by its path: its neighbours must not pass for modules of the same name.
sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]

import click  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from airflow_provider_pgqueue import __version__, spark  # noqa: E402
from airflow_provider_pgqueue.core.duration import duration_text, parse_duration  # noqa: E402
from airflow_provider_pgqueue.core.quantity import quantity  # noqa: E402
from airflow_provider_pgqueue.core.unseen import escape_unencodable  # noqa: E402
from airflow_provider_pgqueue.export.connection import Database  # noqa: E402
from airflow_provider_pgqueue.spark.pipelines.failure import explained  # noqa: E402
from airflow_provider_pgqueue.spark.pipelines.pipeline import Summary, as_line  # noqa: E402

PIPELINES: Final = ("drain", "export", "repair")
_SUMMARY_FILE: Final = "PGQUEUE_SUMMARY"
_NO_DSN: Final = (
    "A connection string on a command line can be read by everybody on the machine, and Spark keeps the command line "
    "in its event log. Set PGQUEUE_DSN, or PGSERVICE, PGHOST, PGPASSFILE, … where the driver starts."
)
# What these mean in every pipeline.
_SHARED: Final = {
    "run_id": "A run that finished under this name is not done again. Default: a new name.",
    "parallelism": "How many tasks talk to PostgreSQL at once, at most as many as it has connections for. Default: 8.",
}
_PARAM: Final = re.compile(r"^:param (\w+): (.*(?:\n(?!:).+)*)", re.M)
_MAY_BE_ZERO: Final = frozenset({"give_up_after"})


def command(pipeline: Callable[..., Summary]) -> click.Command:
    """Return the command of a pipeline.

    Each argument is an option, `run_id` is `--run-id`, but for `spark` and `dsn`: the session is made once the options
    are valid and stopped at the end, and there is no connection string on a command line. What takes several values
    may be repeated. The summary is printed on standard output, and written to the file that `PGQUEUE_SUMMARY` names.
    """
    hints, texts = typing.get_type_hints(pipeline), _texts(pipeline)
    arguments = [each for each in inspect.signature(pipeline).parameters.values() if each.name not in ("spark", "dsn")]
    options: list[click.Parameter] = [_option(each, hints[each.name], texts) for each in arguments]

    @click.pass_context
    def callback(context: click.Context, /, **given: Any) -> None:
        Database()  # refuses a connection string that cannot be read before Java starts
        spark = _session(context)
        try:
            summary = pipeline(spark, **given)
            line = as_line(summary)
            click.echo(line, file=sys.stdout)
            if path := os.environ.get(_SUMMARY_FILE):
                Path(path).write_text(line, encoding="utf-8")
        finally:
            spark.stop()
        if died := summary.get("died"):
            raise click.ClickException(f"{quantity(died)} died")

    short = texts[""].partition("\n")[0]
    given = [*options, _DEBUG, _REFUSED_DSN]
    return click.Command(pipeline.__name__, params=given, callback=callback, help=texts[""], short_help=short)


def _texts(pipeline: Callable[..., Summary]) -> Mapping[str, str]:
    """Return the help of each argument, and under the empty name that of the pipeline."""
    doc = inspect.getdoc(pipeline) or ""
    found = {name: " ".join(text.split()) for name, text in _PARAM.findall(doc)}
    return {**_SHARED, **found, "": doc.partition("\n:")[0]}


def _option(argument: inspect.Parameter, hint: Any, texts: Mapping[str, str]) -> click.Option:
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not NoneType]
    default = argument.default
    required = default is argument.empty
    several = typing.get_origin(hint) is Sequence
    help_ = " ".join(filter(None, [texts.get(argument.name), "May be repeated." if several else None]))
    given: dict[str, Any] = {"help": help_, "required": required, "multiple": several}
    if not (required or default is None or several):
        given |= {
            "default": duration_text(default) if isinstance(default, timedelta) else default,
            "show_default": True,
        }
    if hint is bool:
        given |= {"is_flag": True, "show_default": False}
    else:
        given["type"] = _type(argument.name, kinds, default)
    if any(typing.get_origin(kind) is Callable for kind in kinds):
        given["metavar"] = "MODULE:FUNCTION"
    return click.Option([f"--{argument.name.rstrip('_').replace('_', '-')}", argument.name], **given)


def _type(name: str, kinds: list[Any], default: Any) -> Any:
    if typing.get_origin(kinds[0]) is Literal:
        return click.Choice(typing.get_args(kinds[0]))
    if int in kinds:
        return click.IntRange(0 if default == 0 or name in _MAY_BE_ZERO else 1)
    return next((_TYPES[kind] for kind in kinds if kind in _TYPES), str)


def duration(text: str) -> timedelta:
    """Convert an option; click names it `DURATION` in the help."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_TYPES: Final[Mapping[Any, Any]] = {float: click.FloatRange(0), timedelta: duration}


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError(f"--dsn is refused on purpose. {_NO_DSN}")


_REFUSED_DSN: Final = click.Option(["--dsn"], hidden=True, expose_value=False, is_eager=True, callback=_refuse)


def _debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.obj["debug"] = value or context.obj.get("debug", False)


# Before the name of a pipeline, and after it, where people add it when they read an error.
_DEBUG: Final = click.Option(
    ["--debug"],
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_debug,
    help="Show the traceback of an error.",
)


def _session(context: click.Context) -> SparkSession:
    """Return a session on `--master`, by default on what spark-submit says, else on this machine."""
    builder = SparkSession.builder.appName(f"pgqueue {context.info_name}")
    master = context.obj["master"]
    spark = (builder.master(master) if master else builder).getOrCreate()
    # PySpark's own handler cancels the tasks before a pipeline can let them finish what they have in hand.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The data pipelines of the queue, on Spark. The summary is one line of JSON on standard output; what happens "
    "meanwhile goes to standard error. Exit status: 0 done, 1 error or messages of a drain died, 2 wrong usage, 130 or "
    "143 stopped by a signal.\n\n"
    f"There is no --dsn, on purpose. {_NO_DSN}",
)
@click.option("--master", help="Spark's master URL. Default: what spark-submit says, else local[*].")
@click.version_option(__version__, prog_name="pgqueue spark")
@click.pass_context
def program(context: click.Context, master: str | None) -> None:
    """Remember the master."""
    context.obj["master"] = master


program.params += [_DEBUG, _REFUSED_DSN]
for _name in PIPELINES:
    program.add_command(command(getattr(spark, _name)))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one pipeline and return its exit status; errors go to stderr in one line."""
    shared: dict[str, object] = {}
    try:
        program.main(arguments, prog_name="python -m airflow_provider_pgqueue.spark", obj=shared, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if shared.get("debug"):
            traceback.print_exception(error)
        else:
            click.echo(f"error: {explained(error)}", err=True)
        return 1
    return 0


def _stopped(number: int, frame: object) -> NoReturn:
    # Only the first signal counts: a second one must not interrupt the stopping.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Run one pipeline and end the process; SIGTERM stops it cleanly."""
    escape_unencodable()
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel("WARNING")
    signal.signal(signal.SIGTERM, _stopped)
    sys.exit(run())


if __name__ == "__main__":
    main()
