"""Tokens per call of draft trees, along texts of real models."""
