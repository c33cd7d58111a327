"""The functions of the Spark examples: check departures in batches, and compute the mean delay of each carrier."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from airflow_provider_pgqueue.core import DeadMessage

Delays = dict[str, list[float]]


def check(batch: pa.Table) -> pd.DataFrame:
    """Return an outcome for each flight; the output of a departed one is what the statistics need.

    It has no effect of its own: the result and the output are archived together, once, however often it is called.
    """
    flights = pd.DataFrame([json.loads(message) for message in batch["message"].to_pylist()])
    cancelled, unheard = flights["dep_time"].isna(), flights["arr_time"].isna()
    output = [
        json.dumps({"carrier": carrier, "month": int(month), "dep_delay": None if pd.isna(delay) else int(delay)})
        for carrier, month, delay in zip(flights["carrier"], flights["month"], flights["dep_delay"], strict=True)
    ]
    result = np.select([cancelled, unheard], ["rejected", "failed"], "success")
    return pd.DataFrame(
        {
            "id": batch["id"].to_pylist(),
            "result": result,
            "details": np.select([cancelled, unheard], ["no departure time", "no arrival report yet"], None),
            "output": np.where(result == "success", output, None),
        }
    )


def report_arrival(dead: DeadMessage) -> Any:
    """Repair a flight that died without an arrival report: take the schedule for it."""
    return dead.body | {"arr_time": dead.body["sched_arr_time"], "arrival": "as scheduled"}


def delays(flights: Iterable[Mapping[str, Any]]) -> Delays:
    """Return the number of departures and their mean delay in minutes, by "carrier month"."""
    totals: dict[str, list[float]] = {}
    for flight in flights:
        if flight["dep_delay"] is not None:
            total = totals.setdefault(f"{flight['carrier']} {flight['month']}", [0, 0])
            total[0] += 1
            total[1] += flight["dep_delay"]
    return {name: [number, round(minutes / number, 6)] for name, (number, minutes) in sorted(totals.items())}


def mean_delays(archive: DataFrame) -> Delays:
    """Return the same from rows of the archive with result and output, computed by Spark."""
    flight = f.from_json("output", "carrier string, month int, dep_delay int")
    rows = (
        archive.where("result = 'success'")
        .select(flight.alias("flight"))
        .where("flight.dep_delay IS NOT NULL")
        .groupBy("flight.carrier", "flight.month")
        .agg(f.count("*").alias("number"), f.sum("flight.dep_delay").alias("minutes"))
        .collect()
    )
    means = {f"{row.carrier} {row.month}": [row.number, round(row.minutes / row.number, 6)] for row in rows}
    return dict(sorted(means.items()))
