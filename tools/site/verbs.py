"""The verbs in Python by shelf: one section for each module of `core/verbs`, which mkdocstrings fills."""

from __future__ import annotations

from airflow_provider_pgqueue.core import verbs
from tools.site import schema

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
    """Return the sections, in the order of the shelves of SQL functions and with their titles."""
    titles = {file.parent.name: title for title, files in schema.shelves().items() for file in files}
    members: dict[str, list[str]] = {shelf: [] for shelf in titles}
    for name in names():
        members.setdefault(_shelf(name), []).append(name)
    return "\n".join(
        _SECTION.format(title=titles[shelf], module=f"{verbs.__name__}.{shelf}", members=", ".join(names))
        for shelf, names in members.items()
        if names and shelf != "statement"
    )


def names() -> list[str]:
    """Return the names of the verbs, and of the types of their arguments."""
    return sorted(name for name, value in vars(verbs).items() if hasattr(value, "__module__") and name[0] != "_")


def _shelf(name: str) -> str:
    return str(getattr(verbs, name).__module__).rpartition(".")[2]
