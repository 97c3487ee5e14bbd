"""Judging: somebody's kernel is examined by every check of an operator, and the verdict says what can be acted on."""
