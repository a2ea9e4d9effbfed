"""Compiled kernels for the processor and the GPU, and the code that calls them."""
