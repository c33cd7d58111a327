SELECT * FROM pgmq.send('bench', :body::jsonb);
