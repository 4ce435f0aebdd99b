"""The local backend: RayJobs on a real Ray on this machine, played by an operator process."""

from __future__ import annotations

from ml_pipelines.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
