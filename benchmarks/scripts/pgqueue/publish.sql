SELECT messages.publish('bench', :body);
