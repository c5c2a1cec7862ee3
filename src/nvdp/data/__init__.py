"""Sources of tasks: each draws training batches by step and has a fixed validation set."""
