"""Faults and hostile input, tried on purpose: ``python -m faults`` does the long versions, the tests short ones."""
