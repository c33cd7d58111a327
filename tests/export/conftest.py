"""The target of an export, and the export by threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgqueue.export import export_archive

Export = Callable[..., dict[str, Any]]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def do(dsn: str, target: Path) -> Export:
    """Export to the target as the owner of the tests: `do(drop=True)`."""
    return lambda **options: export_archive(dsn, **{"target": str(target), "parallelism": 3} | options)
