"""What takes long: a million tasks, a month of spans."""
