"""The list of commands, each loaded when it is called, and the one place where an error becomes an exit status."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from airflow_provider_pgqueue import __version__
from airflow_provider_pgqueue.cli.settings import Settings, shared_options
from airflow_provider_pgqueue.cli.suggestion import SuggestingGroup

# The help is repeated here, so that `pgqueue --help` loads no driver.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "install": ("install", "Install or upgrade the schema; let pg_cron run maintenance where it is available."),
    "uninstall": ("install", "Remove the schema with all queues, messages and archives."),
    "doctor": ("doctor", "Look for problems: connection, schema, privileges, maintenance, health."),
    "queues": ("queues", "List the queues and their policies; create, alter, drop, pause or resume one."),
    "publish": ("publish", "Publish JSON lines from a file or standard input."),
    "show": ("show", "Show everything recorded about one message, in the order of time."),
    "peek": ("show", "Show messages without leasing them."),
    "tail": ("tail", "Print messages as they are archived."),
    "stats": ("stats", "Show depth, ages and rates of each queue, and who works on it."),
    "metrics": ("metrics", "Print the metrics in the format of OpenMetrics, or serve them to Prometheus."),
    "worker": ("worker", "Handle messages with a Python function."),
    "dead": ("dead", "Count dead messages by cause."),
    "requeue": ("resolve", "Publish dead messages again."),
    "dismiss": ("resolve", "Dismiss dead messages: nothing more is done about them."),
    "cancel": ("cancel", "Archive messages of a queue as cancelled."),
    "purge": ("cancel", "Delete the waiting messages of a queue."),
    "export": ("export", "Export the completed partitions of the archive to Parquet."),
    "adopt-pgmq": ("pgmq", "Move a queue of the extension PGMQ here, while its publishers continue."),
    "maintenance": ("install", "Run maintenance once, which pg_cron or Airflow does every minute."),
    "web": ("web", "Serve the Queues page on the loopback address, until Ctrl-C."),
}


class _LazyGroup(SuggestingGroup):
    """A group that imports the module of a command when the command is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _ = COMMANDS[name]
        command: click.Command = getattr(
            importlib.import_module(f"airflow_provider_pgqueue.cli.{module}"), name.replace("-", "_")
        )
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, help_) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@shared_options
@click.version_option(__version__, prog_name="pgqueue")
def program() -> None:
    """PostgreSQL as a message queue, from the shell.

    The connection is --dsn, the variable PGQUEUE_DSN, or libpq's own variables and password file.
    """


def run_program(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; errors go to stderr in one line."""
    settings = Settings()
    try:
        status = program.main(arguments, prog_name="pgqueue", obj=settings, standalone_mode=False)
    except click.ClickException as error:
        return _refused(error)
    except click.Abort:
        return 130
    except BaseException as error:
        return report(error, settings)
    return status if isinstance(status, int) else 0


def report(error: BaseException, settings: Settings) -> int:
    """Print the error that ended a command in one line on stderr, without any body, and return the exit status."""
    match error:
        case KeyboardInterrupt():
            return 130
        case SystemExit(code=None | int() as code):
            return code or 0
        case Exception():
            text = _text(error) or f"{type(error).__name__}. This is a bug in pgqueue: report it with --debug."
        case _:
            # A function of the user raised it to end the process, and its text may quote a body.
            text = f"{type(error).__name__} ended the command. --debug shows its text."
    if settings.debug:
        _print_text("".join(traceback.format_exception(error)))
    _print_text(f"error: {text}")
    return 1


def _refused(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        _print_text(error.ctx.get_usage())
    _print_text(f"error: {error.format_message()}")
    return error.exit_code


def _print_text(text: str) -> None:
    from airflow_provider_pgqueue.cli.text import print_text

    # If stderr cannot be written either, only the exit status is left.
    with suppress(OSError):
        print_text(text, err=True)


def _text(error: Exception) -> str | None:
    """Return what may be shown of an error, in one line; None for an unexpected error."""
    import psycopg

    from airflow_provider_pgqueue.cli.fix import in_commands
    from airflow_provider_pgqueue.cli.text import one_line
    from airflow_provider_pgqueue.core.errors import PgQueueError, text_without_values, translate

    match translate(error):
        case PgQueueError() as known:
            return one_line(in_commands(str(known)))
        case psycopg.Error():
            return one_line(text_without_values(error))
        case UnicodeEncodeError(reason="surrogates not allowed"):
            return "an argument is not valid UTF-8. Give text in UTF-8."
        case OSError(filename=file, strerror=reason):
            return one_line(": ".join(filter(None, (str(file or ""), reason or str(error)))))
    return None
