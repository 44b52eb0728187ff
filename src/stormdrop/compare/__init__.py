"""Searches side by side: on recordings, on landscapes, on this machine."""
