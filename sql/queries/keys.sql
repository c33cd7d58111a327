-- The keys that a query of the user gives. It stands in lines of its own, so that a comment at its end hides nothing.
SELECT q.{}::text AS key FROM (
{}
) AS q
