"""Makes the zip for `--py-files`: `python -m airflow_provider_pgqueue.spark.package pgqueue.zip`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import click

from airflow_provider_pgqueue.core.query import sql_folder


def package(target: Path) -> Path:
    """Write spark, all that it stands on and the SQL to a zip, without Airflow's part; return its path.

    The same files make the same zip, byte for byte. An unfinished one is never seen under the name.
    """
    root = Path(__file__).parents[1]
    folders = {name: root / name for name in ("core", "export", "spark")} | {"sql": Path(str(sql_folder()))}
    files = {"__init__.py": root / "__init__.py"}
    for name, folder in folders.items():
        files |= {f"{name}/{file.relative_to(folder).as_posix()}": file for file in sorted(folder.rglob("*"))}
    unfinished = target.with_name(f".{target.name}.unfinished")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for path, file in files.items():
            if file.is_file() and file.suffix != ".pyc":
                # An entry of this kind has no date.
                entry = zipfile.ZipInfo(f"{root.name}/{path}")
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return unfinished.replace(target)


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
