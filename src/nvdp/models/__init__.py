"""Models: each answers ``adapt(context) -> Posterior``."""
