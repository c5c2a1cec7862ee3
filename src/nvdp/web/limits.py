"""What a request may ask for, in one place: with these, no request takes much memory or time."""

MOST_BYTES = 512 * 1024  # of a request's body; read no further than this
MOST_CONTEXT = 1024  # points: all pixels of a 32 × 32 picture
MOST_QUERY = 1024
MOST_FEATURES = 8  # numbers of a point
MOST_SAMPLES = 64
MOST_SAMPLED = 32 * 1024  # samples × query points
LARGEST_VALUE = 1000.0  # of a coordinate or an observation, either sign, in the units of the model's training
LARGEST_NUMBER = 1e12  # of a table's own units, either sign
LARGEST_SEED = 2**31 - 1
LONGEST_NAME = 100
MOST_CONTEXT_EXACT = 128  # the exact GP solves a system of this many equations for every kernel
MOST_QUERY_EXACT = 512  # and one of this many for every kernel that functions are drawn from
RATE_CELLS = 32  # rows and columns of a layer's heat map

MOST_PIXELS = 4096  # numbers of a picture to classify
MOST_SUPPORT = 50  # labelled pictures: ten of each of five classes
MOST_CLASSES = 20
MOST_PICTURES = 20  # to name in one request

WAITING = 160  # requests that may wait for a worker: two models for each of 80 visitors
