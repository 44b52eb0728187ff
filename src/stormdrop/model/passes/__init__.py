"""Rewrites of a model's Relax code."""
