"""Says which command was meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import click

# What the same is called elsewhere, and commands of a group without the group.
SYNONYMS: Final = {
    "alter": "queues alter",
    "check": "doctor",
    "consume": "worker",
    "create": "queues create",
    "create-queue": "queues create",
    "drop": "queues drop",
    "enqueue": "publish",
    "health": "doctor",
    "init": "install",
    "list": "queues",
    "migrate": "install",
    "pause": "queues pause",
    "queue": "queues",
    "replay": "requeue",
    "resume": "queues resume",
    "retry": "requeue",
    "run": "worker",
    "send": "publish",
    "setup": "install",
    "status": "stats",
    "upgrade": "install",
}


class SuggestingGroup(click.Group):
    """A group that suggests the command that was meant for a mistyped one."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, as click does; UsageError with a suggestion if there is none."""
        name = arguments[0]
        if self.get_command(context, name) is None and not name.startswith("-") and not context.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{self._suggestion(context, name)}", context)
        return super().resolve_command(context, arguments)

    def _suggestion(self, context: click.Context, name: str) -> str:
        if name in ("list", "ls") and self.invoke_without_command:
            return f" {context.command_path!r} alone lists them."
        names = get_close_matches(name, self.list_commands(context), n=2, cutoff=0.7)
        if context.parent is None and name in SYNONYMS:
            names = [SYNONYMS[name]]
        return f" Did you mean {' or '.join(map(repr, names))}?" if names else " --help lists the commands."
