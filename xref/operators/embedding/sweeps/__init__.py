"""What is tried, along each axis on which kernels take other paths."""
