"""Workers: what the scheduler sees of them, and what is hooked in on them."""
