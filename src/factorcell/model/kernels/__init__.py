"""Compiled code for the processor and the GPU, and what calls it."""
