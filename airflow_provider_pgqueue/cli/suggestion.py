"""Says which command was meant."""

from __future__ import annotations

from difflib import get_close_matches

import click


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
        return f" Did you mean {' or '.join(map(repr, names))}?" if names else " --help lists the commands."
