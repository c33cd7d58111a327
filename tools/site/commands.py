"""Every command of `pgqueue` as Markdown, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from airflow_provider_pgqueue.cli.program import program


def reference() -> str:
    """Return a section for each command: its usage, what it does, its options."""
    return "\n\n".join(text for context in contexts() for text in _section(context)) + "\n"


def contexts() -> Iterator[click.Context]:
    """Yield each command that does something, in the order of `pgqueue --help`."""
    yield from _below(click.Context(program, info_name="pgqueue"))


def _below(parent: click.Context) -> Iterator[click.Context]:
    group = parent.command
    if not isinstance(group, click.Group) or group.invoke_without_command:
        yield parent
    if isinstance(group, click.Group):
        for name in group.list_commands(parent):
            command = group.get_command(parent, name)
            if command is not None and not command.hidden:
                yield from _below(click.Context(command, info_name=name, parent=parent))


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## {context.command_path}"
    yield inspect.cleandoc(command.help or "").replace("\f", "").replace("\b\n", "")
    yield f"```sh\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    rows = [f"| `{option}` | {_cell(text)} |" for option, text in _options(context)]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield what this command takes next to the options of all commands."""
    shared = {option.name for option in program.params}
    for option in context.command.params:
        record = option.get_help_record(context)
        if record is not None and record[1] and option.name not in shared:
            yield record


def _cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;").replace("\n", " ")
