"""Figures and tables of the documentation, from stored results: ``python -m paper_figures``."""
