"""A user's model becomes a graph of tasks."""
