"""Families of schedules: their contract, the registry of those that exist, and the ways to make more of them."""
