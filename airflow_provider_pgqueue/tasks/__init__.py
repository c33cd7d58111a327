"""What our operators, sensors and triggers share: the base of all tasks, and what several of them do."""
