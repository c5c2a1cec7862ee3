"""Applications on pictures: completing them, and classifying a user's own."""
