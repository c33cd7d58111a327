"""Measures the pipeline on Spark beside Spark's own JDBC source: `python -m benchmarks.spark`."""
