-- The rows of somebody's query as bodies. The operators that publish or wait for rows send these, with that query in place of %s, to
-- databases that need not have the schema.

-- name: columns
-- The columns of a query, on any PostgreSQL: a cursor for it is declared, and never fetched from.
SELECT * FROM (
%s
) AS source

-- name: rows_as_json
-- The rows of a query as bodies, on any PostgreSQL. The database makes the JSON, so that dates, UUIDs and numbers of any
-- precision need no conversion in Python.
SELECT (CASE WHEN body ? 'message' AND body - 'message' = '{}' THEN body -> 'message' ELSE body END)::text
  FROM (SELECT to_jsonb(source) AS body FROM (
%s
) AS source) AS bodies
