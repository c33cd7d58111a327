"""The drop of an exported partition: PostgreSQL compares it with its manifest, and does it or says why not."""

from __future__ import annotations

import logging
import random
import time
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ExportDiffers, ForeignPartition, UndecidedMessages
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.jobs.export.manifest import Manifest
from airflow_provider_pgqueue.spark.jobs.watch import watching

log = logging.getLogger(__name__)

_TRIES: Final = 6


def drop(conn: psycopg.Connection[Any], manifest: Manifest) -> str | None:
    """Drop the partition that the manifest is of; return why it is kept if it cannot be dropped now."""
    statement = verbs.drop_archive_partition(manifest.partition, manifest.to_json())
    why = "it is in use"
    for attempt in range(_TRIES):
        try:
            with watching(lambda: log.info("partition %s: being compared with its export", manifest.partition)):
                rows = run(conn, statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            time.sleep(random.uniform(0.1, 0.3) * (attempt + 1))
        except (UndecidedMessages, ExportDiffers, ForeignPartition) as error:
            why = str(error)
            break
        else:
            log.info("partition %s: dropped with %s", manifest.partition, quantity(rows))
            return None
    log.warning("partition %s was not dropped: %s", manifest.partition, why)
    return why
