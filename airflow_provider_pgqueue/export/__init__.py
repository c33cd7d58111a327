"""The export of the archive to Parquet, without Spark. Needs the extra `export`.

export_archive(target="/data/messages", older_than=timedelta(days=30), drop=True)
"""

from importlib.util import find_spec
from typing import Final

_MISSING: Final = [name for name in ("adbc_driver_manager", "adbc_driver_postgresql", "pyarrow") if not find_spec(name)]
if _MISSING:
    raise ModuleNotFoundError(
        f'{_MISSING[0]} is not installed. Install it with: pip install "airflow-provider-pgqueue[export]"',
        name=_MISSING[0],
    )

from airflow_provider_pgqueue.export.export import export_archive, export_files  # noqa: E402

__all__ = ["export_archive", "export_files"]
