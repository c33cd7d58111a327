"""The pipelines from a shell: `python -m airflow_provider_pgqueue.spark drain …`, or this file for spark-submit."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

# spark-submit starts this file by its path: its neighbours must not pass for modules of the same name.
sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]

import click  # noqa: E402

from airflow_provider_pgqueue import __version__, spark  # noqa: E402
from airflow_provider_pgqueue.core.errors import PgQueueError  # noqa: E402
from airflow_provider_pgqueue.spark.failure import raised_in_spark  # noqa: E402
from airflow_provider_pgqueue.spark.jobs.command import NO_DSN, REFUSED_DSN, command  # noqa: E402

PIPELINES: Final = {
    "drain": "Lease, handle and archive a large backlog in parallel.",
    "export": "Write closed partitions of the archive as Parquet, verify them, drop them if wanted.",
    "repair": "Repair dead messages with a function and publish them again.",
    "triage": "Find out what messages died of: a table of causes, and if wanted a page with plots.",
    "replay": "Publish finished messages again.",
    "reconcile": "Compare what was to be published with what is archived and with a business table.",
    "rollup": "Count arrivals, results and times by minute, hour and day, into messages.traffic.",
}


class Pipelines(click.Group):
    """The pipelines, each loaded when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names, as the help lists them."""
        return list(PIPELINES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of that name, made of the function of that name."""
        return command(getattr(spark, name)) if name in PIPELINES else None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the pipelines without loading them."""
        with formatter.section("Pipelines"):
            formatter.write_dl(list(PIPELINES.items()))


@click.group(
    cls=Pipelines,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The data pipelines of the queue, on Spark. The summary is one line of JSON on standard output; what happens "
    "meanwhile goes to standard error. Exit status: 0 done, 1 error, 2 wrong usage, 130 or 143 stopped by a signal.\n\n"
    f"There is no --dsn, on purpose. {NO_DSN}",
)
@click.option("--master", help="Spark's master URL. Default: what spark-submit says, else local[*].")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="pgqueue spark")
@click.pass_context
def program(context: click.Context, master: str | None, debug: bool) -> None:
    """Remember the options that all pipelines share."""
    context.obj.update(master=master, debug=debug)


program.params.append(REFUSED_DSN)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one pipeline and return its exit status; errors go to stderr in one line."""
    shared: dict[str, object] = {}
    try:
        program.main(arguments, prog_name="pgqueue-spark", obj=shared, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        known = error if isinstance(error, PgQueueError) else raised_in_spark(error)
        if shared.get("debug"):
            traceback.print_exception(error)
        elif known is not None:
            click.echo(f"error: {known}", err=True)
        else:
            # The text of an error of Spark may quote data.
            click.echo(f"error: {type(error).__name__}. --debug shows where; the logs of Spark may say more.", err=True)
        return 1
    return 0


def _stopped(number: int, frame: object) -> NoReturn:
    # Once: a second signal meanwhile must not interrupt the stopping.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Run one pipeline and end the process; SIGTERM stops it cleanly."""
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel("WARNING")
    signal.signal(signal.SIGTERM, _stopped)
    sys.exit(run())


if __name__ == "__main__":
    main()
