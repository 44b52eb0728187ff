"""Passes that rewrite the Relax code of a model."""
