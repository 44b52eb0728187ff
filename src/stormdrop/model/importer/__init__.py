"""Turns a user's model into a graph of tasks."""
