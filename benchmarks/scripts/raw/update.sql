UPDATE raw SET created_at = now() WHERE id = (SELECT min(id) FROM raw) + :client_id;
