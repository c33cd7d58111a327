"""Functions of the user: which one a text names, and whether it can be called as we will call it."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from airflow_provider_pgqueue.core.errors import InvalidArgument

_GENERATORS: Final = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def load_function(given: str | Callable[..., Any]) -> Callable[..., Any]:
    """Import and return the function that `module:function` names, and a function as it is.

    InvalidArgument if there is none of this name.
    """
    if not isinstance(given, str):
        return given
    module_name, _, name = given.partition(":")
    if not module_name or not name:
        raise InvalidArgument(f"{given!r} names no function. Write module:function, such as handlers:pack.")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        raise InvalidArgument(
            f"module {module_name!r} cannot be imported ({type(error).__name__}: {error})",
            "Start in its directory, or set PYTHONPATH." if absent else "The module was found: fix what it raises.",
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidArgument(f"module {module_name!r} has no function {name!r}. Check its spelling.")
    function: Callable[..., Any] = found
    return function


def why_missing(module: str, name: str) -> str | None:
    """Return how to fix the name of a function that is not in a module; None if it may be there.

    The module is not imported. Where its text can be read, the function must be in it. The packages that it is in are
    imported, as Python finds no module without them.
    """
    first = name.partition(".")[0]
    try:
        spec = find_spec(module)
        if spec is None:
            return f"There is no module {module!r}. Check its spelling and PYTHONPATH."
        if module in sys.modules:
            found = hasattr(sys.modules[module], first)
        else:
            found = _may_define(getattr(spec.loader, "get_source", lambda name: None)(module), first)
    except SyntaxError as error:
        return f"Line {error.lineno} of module {module!r} is not valid Python ({error.msg})."
    except (Exception, SystemExit) as error:
        # Importing the packages around it may raise anything.
        return f"The module cannot be found ({type(error).__name__}). Check its spelling and PYTHONPATH."
    return None if found else f"Module {module!r} has no {first!r}. Check its spelling."


def _may_define(source: str | None, name: str) -> bool:
    """Return whether the text of a module may bind a name; True if nobody can tell without running it."""
    if source is None:
        return True
    words = {word for node in ast.walk(ast.parse(source)) for word in _bound(node)}
    return not words.isdisjoint({name, "*", "__getattr__"})


def _bound(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return tuple(one.asname or one.name.partition(".")[0] for one in names)
        case ast.Name(id=name, ctx=ast.Store()):
            return (name,)
    return ()


def check_call(
    given: Callable[..., Any] | str | None,
    gets: str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Raise InvalidArgument if a function cannot be called with what it `gets`, such as `a message`, and these.

    So no message pays for finding out. A text `module:function` is not checked here: check what `load_function`
    makes of it.
    """
    if not callable(given) or not isinstance(args or (), list | tuple) or not isinstance(kwargs or {}, Mapping):
        return
    if any(test(given) or test(type(given).__call__) for test in _GENERATORS):
        raise InvalidArgument(
            f"{name_of(given)} is a generator function, so a call of it does nothing", "Let it return, and not yield."
        )
    if why := _why_not(given, None, *(args or ()), **(kwargs or {})):
        with_more = args is not None
        raise InvalidArgument(
            f"{name_of(given)} cannot be called with {gets}{', op_args and op_kwargs' if with_more else ''}: {why}",
            f"Let its first parameter take the {gets.partition(' ')[2]}, and give the others"
            f"{'' if with_more else ' a default'}.",
        )


def name_of(given: Callable[..., Any]) -> str:
    """Return the name of a function, for a sentence."""
    while isinstance(given, functools.partial):
        given = given.func
    return getattr(given, "__name__", type(given).__name__)


def check_call_without(given: Callable[..., Any]) -> None:
    """Raise InvalidArgument if a function cannot be called without arguments, as that of `messages` is."""
    if why := _why_not(given):
        raise InvalidArgument(
            f"messages is a function that cannot be called without arguments: {why}",
            "Give one without parameters, such as functools.partial makes of it.",
        )


def _why_not(given: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Return why a function cannot be called with these; None if it can, or says nothing, as one of C may."""
    try:
        inspect.signature(given).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        if isinstance(given, functools.partial):
            return "functools.partial gives it arguments that it does not take"
    return None


class _Loop:
    """The event loop of a thread, which ends with it."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def __del__(self) -> None:
        with suppress(RuntimeError):  # a call that hangs still runs in it
            self.runner.close()


_OF_THREAD: Final = threading.local()


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that waits for an `async def` function; any other as it is.

    All calls of a thread run in one loop, so that what the function keeps open, such as a client, can be used again.
    """
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not hasattr(_OF_THREAD, "loop"):
            _OF_THREAD.loop = _Loop()
        return _OF_THREAD.loop.runner.run(function(*args, **kwargs))

    return call
