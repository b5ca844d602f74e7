"""What bounded a span: the chain of its tasks, each after the last one that it waited for."""
