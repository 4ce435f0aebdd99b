"""The Dagster side of the loop: resource, configs, translation, keeper."""

from __future__ import annotations

import gc

import dagster  # noqa: F401  # so that it is there to be frozen

# Dagster's 100,000 objects live as long as the process: no need to look through them for garbage
# again and again, 0.07 s each time, the first of them while the code location loads (which takes
# 1.1 times what importing dagster takes, and 1.2 times without this line; goal 1.15).
gc.freeze()
