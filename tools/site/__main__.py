"""`make docs`: builds the site and prints warnings only; each of them fails the build."""

from __future__ import annotations

import logging

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tools import ROOT


def main() -> None:
    # Below WARNING nothing is printed; above it, as with `mkdocs --quiet`, a strict build would count no warning.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    config = load_config(str(ROOT / "mkdocs.yml"))
    try:
        build(config)
    except Abort as refused:
        raise SystemExit(refused.message) from None
    print(f"{config.site_dir}/index.html")


if __name__ == "__main__":
    main()
