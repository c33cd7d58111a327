"""The pipelines over Spark Connect, with no JVM in the driver's process. The server is the Spark of the other tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import run, verbs
from tools import ROOT

PROGRAM = """
import json
from pyspark.sql import SparkSession
from airflow_provider_pgqueue.spark import drain, export, register, repair

spark = SparkSession.builder.remote(SERVER).getOrCreate()
assert "connect" in type(spark).__module__

def judge(messages):
    import pyarrow as pa
    result = ["failed" if message == "7" else "success" for message in messages["message"].to_pylist()]
    return pa.table({"id": messages["id"], "result": result})

done = {
    "drain": drain(spark, queue="orders", function=judge),
    "repair": repair(spark, queue="orders", function=lambda message: message.body),
    "export": export(spark, target=TARGET),
}
register(spark)
failed = spark.read.format("pgqueue").options(table="archive", result="failed", columns="message").load()
failed.write.format("pgqueue").mode("append").options(queue="again", runId="connect").save()
print(json.dumps(done))
"""


@pytest.fixture
def server(session: SparkSession) -> Iterator[str]:
    """The address at which the session's Spark serves Connect."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    jvm: Any = session._jvm
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    context: Any = session.sparkContext._jsc
    context.sc().conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.sc().conf().set("spark.connect.grpc.binding.port", port)
    service.start(context.sc())
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        nothing = jvm.scala.Option.empty()
        service.stop(nothing, nothing)


def test_the_jobs_run_over_spark_connect(
    conn: psycopg.Connection[Any], queue: Callable[..., str], dsn: str, server: str, tmp_path: Path
) -> None:
    queue("orders")
    queue("again")
    run(conn, verbs.publish_batch("orders", range(50)))
    environment = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONPATH": str(ROOT)}
    program = PROGRAM.replace("TARGET", repr(str(tmp_path / "export"))).replace("SERVER", repr(server))
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    done = json.loads(ended.stdout.splitlines()[-1])
    assert (done["drain"]["archived"], done["drain"]["parallelism"]) == (50, 2)
    assert (done["repair"]["requeued"], done["export"]["exported"]) == (1, [])
    assert conn.execute("SELECT queue_name, message FROM messages.message ORDER BY id").fetchall() == [
        ("orders", 7),
        ("again", 7),
    ]
