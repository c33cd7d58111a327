"""The verbs in Python: one section for each module of `core/verbs`, which mkdocstrings fills."""

from __future__ import annotations

import re
import sys

from airflow_provider_pgqueue.core import verbs
from tools.chapters import functions

_SECTION = """### {title}

::: {module}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      show_root_members_full_path: false
      show_docstring_description: false
      heading_level: 4
      members: [{members}]
"""


def reference() -> str:
    """Return the sections, in the order in which the schema has their functions."""
    members: dict[str, list[str]] = {}
    for name in sorted(names(), key=[*functions(), *names()].index):
        members.setdefault(str(getattr(verbs, name).__module__), []).append(name)
    return "\n".join(
        _SECTION.format(title=_title(module), module=module, members=", ".join(sorted(names)))
        for module, names in members.items()
    )


def names() -> list[str]:
    """Return the names of the verbs, and of the types of their arguments."""
    return dir(verbs)


def _title(module: str) -> str:
    """Return how the docstring of a module begins."""
    return re.split("[:,.]", sys.modules[module].__doc__ or "")[0]
