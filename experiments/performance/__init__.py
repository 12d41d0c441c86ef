"""Time and memory, compared with what else could be used."""
