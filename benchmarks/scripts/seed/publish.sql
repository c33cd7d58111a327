INSERT INTO messages.message (message) VALUES (:body) RETURNING id;
