"""Winograd convolutions for CPUs."""
