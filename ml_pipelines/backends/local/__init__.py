"""The local backend: RayJobs on a real Ray of this machine."""

from __future__ import annotations

from ml_pipelines.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
