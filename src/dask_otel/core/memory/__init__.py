"""What results take of the workers' memory, and which worker had the least of it left."""
