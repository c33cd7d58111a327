"""Links of the pages that leave docs/: on the site they lead to the file in the repository."""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Final

_log = logging.getLogger("mkdocs.hooks.links")  # below the logger whose warnings MkDocs counts

_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def to_repository(markdown: str, page: str, root: Path, repository: str) -> str:
    """Return the page with absolute links to the files of the repository that are no pages.

    A link that leads nowhere is a warning, which fails a strict build.

    :param page: where it lies, from `root`, as in `docs/how-to/monitoring.md`.
    :param repository: what the path of a file is appended to.
    """

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[1]))
        if not (root / path).exists():
            _log.warning("%s links to %s, which does not exist", page, link[1])
        if path.startswith("docs/") and not path.startswith("docs/decisions/") and (root / path).is_file():
            return link[1]
        return f"{repository}/{path}"

    parts = _FENCE.split(markdown)
    return "".join(part if part.lstrip().startswith("```") else _LINK.sub(absolute, part) for part in parts)
