"""Every table and figure of the paper: the runs it needs, a queue that trains and scores them, and a results page."""
