"""Every table and figure as a plan of runs, a queue that works it off, and a page made from the results."""
