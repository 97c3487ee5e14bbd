"""xref decides, bit for bit, whether a token-embedding kernel is right."""

__version__ = "0.1.0"
