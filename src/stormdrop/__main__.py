"""`python -m stormdrop` is the command line."""

from .cli import main

main()
