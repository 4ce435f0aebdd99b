"""Joins the job's Ray cluster, and keeps Ray's own news out of the job's log."""

from __future__ import annotations

import logging


def join_ray() -> None:
    """Connect this driver, if it isn't yet: warnings are heard, the rest is not."""
    import ray

    ray.init(ignore_reinit_error=True, logging_level=logging.WARNING)
    # Ray Data warns that there are no progress bars, which is what we asked for.
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
