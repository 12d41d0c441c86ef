"""Recorders of engines: what a server samples, written as a run for the audit."""
