"""Measures the pipeline on Spark compared with Spark's own JDBC source: `python -m benchmarks.spark`."""
