"""Tables and plots: pure functions of the documents that commands print as JSON."""
