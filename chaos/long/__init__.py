"""What takes long: a million tasks, a month, a day of names."""
