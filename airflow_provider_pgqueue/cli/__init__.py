"""The command line `pgqueue`: the queue from a shell, without Airflow."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process: 0 done, 1 error, 2 wrong usage, 3 done without output, 130 interrupted."""
    # Imported here so that importing a part of the command line does not load all of it.
    from airflow_provider_pgqueue.cli.program import run_program
    from airflow_provider_pgqueue.core.unseen import escape_unencodable

    escape_unencodable()
    sys.exit(run_program(arguments))
