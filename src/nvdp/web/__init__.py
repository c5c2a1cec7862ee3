"""The page behind ``nvdp serve``: a small JSON API over `model.adapt`, and static files that call it."""
