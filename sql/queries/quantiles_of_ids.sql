-- Ids that cut a table into pieces with about as many rows each, from a sample of its pages.
SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY id) FROM {} TABLESAMPLE SYSTEM (%s) REPEATABLE (1) WHERE {}
