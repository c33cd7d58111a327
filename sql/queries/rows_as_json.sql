-- The rows of a query as bodies, on any PostgreSQL. The database makes the JSON, so that dates, UUIDs and numbers of any
-- precision need no conversion in Python.
SELECT (CASE WHEN body ? 'message' AND body - 'message' = '{}' THEN body -> 'message' ELSE body END)::text
  FROM (SELECT to_jsonb(source) AS body FROM (
%s
) AS source) AS bodies
