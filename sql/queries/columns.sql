-- The columns of a query, on any PostgreSQL: a cursor for it is declared, and never fetched from.
SELECT * FROM (
%s
) AS source
