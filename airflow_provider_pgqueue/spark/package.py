"""Makes the zip for `--py-files`: `python -m airflow_provider_pgqueue.spark.package pgqueue.zip`."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from airflow_provider_pgqueue.core.query import sql_folder

_PACKAGE: Final = "airflow_provider_pgqueue"
# What every entry is dated: the same files make the same zip, byte for byte.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def package(target: Path) -> Path:
    """Write core, spark and the SQL to a zip, without Airflow's part and without what others wrote; return its path.

    An unfinished zip is never seen under the name.
    """
    root = files(_PACKAGE)
    parts = {"core": root / "core", "spark": root / "spark", "sql": sql_folder()}
    unfinished = target.with_name(f".{target.name}.unfinished")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
        _write(archive, f"{_PACKAGE}/__init__.py", root / "__init__.py")
        for name, folder in parts.items():
            for path, file in _files(folder):
                _write(archive, f"{_PACKAGE}/{name}/{path}", file)
    return unfinished.replace(target)


def _files(folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_file():
            yield entry.name, entry
        elif entry.name != "__pycache__":
            yield from ((f"{entry.name}/{path}", file) for path, file in _files(entry))


def _write(archive: zipfile.ZipFile, name: str, file: Traversable) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(target: Path) -> None:
    """Write the zip for spark-submit --py-files.

    It has this package and no other: the workers need psycopg, pyarrow, click and adbc-driver-postgresql by themselves
    (and pandas for functions that take it), which cannot be imported from a zip.
    """
    click.echo(package(target))


if __name__ == "__main__":
    main()
