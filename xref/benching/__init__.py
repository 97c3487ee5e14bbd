"""`xref bench`: goldens, the frameworks' own operators and kernels are timed beside the machine's own copy."""
