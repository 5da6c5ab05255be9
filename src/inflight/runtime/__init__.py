"""The only home of torch: models, KV memory, sampling."""

import os

# How long OpenMP's threads spin for the next piece of work before they sleep, in turns of a loop: some 50 microseconds.
# It is read once, when torch brings the library. By default they would spin through all that Python does between two
# steps, on a core that a server and its clients could use.
os.environ.setdefault("GOMP_SPINCOUNT", "4000")
