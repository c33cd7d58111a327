SELECT count(*) FROM messages.consume('bench', :batch);
