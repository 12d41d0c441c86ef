"""Numba kernels: arrays in, arrays out, no validation and no objects."""
