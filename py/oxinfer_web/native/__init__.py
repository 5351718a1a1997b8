"""Kernels and files for CPython: wasmtime, and a checkpoint in a local folder."""
