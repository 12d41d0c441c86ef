"""Files: read within bounds, written safely."""
