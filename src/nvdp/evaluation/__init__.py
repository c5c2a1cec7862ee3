"""Scores of models: metrics, the exact GP beside them, and whole runs."""
