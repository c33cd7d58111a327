"""Repairs dead messages with a function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from airflow_provider_pgqueue.core.argument import Rule, function, optional
from airflow_provider_pgqueue.core.function import check_call
from airflow_provider_pgqueue.core.repair import RepairFunction, Validator
from airflow_provider_pgqueue.tasks.remedy import ChosenArguments, RemedyTask


def _validator(value: Any) -> str | None:
    if isinstance(value, str) and value.endswith(".json"):
        return None if Path(value).is_file() else "There is no such file. Give the whole path of a JSON Schema."
    fix = function(value)
    return fix and f"{fix} Or give the path of a .json file with a JSON Schema, as a text."


class PgQueueRepairOperator(RemedyTask):
    """Leases dead messages, calls a function of yours with each, and requeues, dismisses or leaves it.

    The function gets a `DeadMessage` (`body`, `failure`, `result`, `reference`, `attempts`, …) and returns a new body,
    or `KEEP`, `LEAVE` or `Dismiss(reason)` of `airflow_provider_pgqueue.core`. Whatever it returns or raises concerns
    that message alone. A dry run calls it, too.

    The arguments for the choice of messages and the pace, and the result, are those of `RemedyTask`.

    :param function: called with each dead message; a function, or its name as `package.module:function`.
    :param validator: called with each body that would be published, returns what is wrong or None; a function, its
        name, or the path of a `.json` file with a JSON Schema.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "function": function,
        "validator": optional(_validator),
        **RemedyTask.rules,
    }

    def __init__(
        self,
        *,
        function: RepairFunction | str,
        validator: Validator | str | None = None,
        **kwargs: Unpack[ChosenArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.validator = validator
        self.check_written()
        check_call(function, "a dead message")
        check_call(validator, "a body")

    def _function(self) -> tuple[RepairFunction | str, Validator | str | None]:
        return self.function, self.validator
