"""Verifying: the goldens are held to the letter of an operator's contract, to each other, and to pinned digests."""
