"""stormdrop inside other tools."""
