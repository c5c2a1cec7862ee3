"""nvdp."""
