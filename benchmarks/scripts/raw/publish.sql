INSERT INTO raw (message) VALUES (:body) RETURNING id;
