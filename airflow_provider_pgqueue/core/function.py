"""Finds the function that a text names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from airflow_provider_pgqueue.core.errors import InvalidArgument


def load_function(path: str) -> Callable[..., Any]:
    """Import and return the function that `module:function` names; InvalidArgument if there is none."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InvalidArgument(f"{path!r} names no function. Write module:function, such as handlers:pack.")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        raise InvalidArgument(
            f"module {module_name!r} cannot be imported ({type(error).__name__}: {error})",
            "Start in its directory, or set PYTHONPATH." if absent else "The module was found: mend what it raises.",
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidArgument(f"module {module_name!r} has no function {name!r}. Check its spelling.")
    function: Callable[..., Any] = found
    return function
