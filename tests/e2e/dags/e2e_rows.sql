SELECT '{{ dag.dag_id }}' AS message
