"""What is observed: worker processes, timing, replay of recordings, callables, remote devices."""
