"""Kernels and files for Pyodide: both belong to the engine worker, and are asked for through JavaScript."""
