"""Building blocks: set encoders, rate networks, the conditional-dropout layer, likelihoods."""
