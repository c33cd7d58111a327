"""Where an export goes: what is shown of it, and that nothing leads out of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from airflow_provider_pgqueue.export.manifest import File, staging_folder
from airflow_provider_pgqueue.export.target import Target


def test_a_secret_in_the_uri_of_the_target_is_not_shown() -> None:
    assert str(Target("s3://key:secret@bucket/messages?region=x&secret=y", None)) == "'s3://bucket/messages'"


OUTSIDE = ["../kept", "data/../../kept", "/kept", "data//kept", "./kept", ""]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leads_out_of_the_target_is_refused(path: str) -> None:
    given = {"queue_name": "orders", "result": "success", "date": date(2026, 1, 1), "rows": 1, "bytes": 1}
    with pytest.raises(ValueError, match="leads out of the target"):
        File(chunk=0, path=path, **given)


@pytest.mark.parametrize("partition", [".", "..", "../..", "/"])
def test_a_partition_of_any_name_has_a_folder_of_its_own(tmp_path: Path, partition: str) -> None:
    folder = tmp_path / staging_folder(partition)
    assert folder.resolve().parent == tmp_path / "_staging"
