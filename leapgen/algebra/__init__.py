"""Symbolic half: recurrences, their window form, proofs and printers."""
