\set number :number + 1
\set id (:number - 1) * :clients + :client_id + 1
UPDATE messages.message SET lock_expires_at = CURRENT_TIMESTAMP + interval '1 minute'
 WHERE id = :id AND (lock_expires_at IS NULL OR lock_expires_at < CURRENT_TIMESTAMP)
RETURNING created_at, message \gset
BEGIN;
DELETE FROM messages.message WHERE id = :id;
INSERT INTO messages.message_archive (created_at, message, result, handled_by)
VALUES (:created_at, :message, 'success', 'bench');
COMMIT;
