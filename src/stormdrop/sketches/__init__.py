"""Families of schedules: their contract, their registry, and the ways to make more of them."""
