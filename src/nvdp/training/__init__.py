"""Training: a configuration, one loop, checkpoints that survive anything."""
