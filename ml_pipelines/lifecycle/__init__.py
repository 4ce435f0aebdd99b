"""The life of a job: submit, follow, decide, clean up; one loop for every front end."""

from ml_pipelines.lifecycle.cancelling import cancel
from ml_pipelines.lifecycle.keeper import sweep
from ml_pipelines.lifecycle.loop import follow
from ml_pipelines.lifecycle.platform import (
    Platform,
    check_storage_urls,
    open_backend,
    open_platform,
)
from ml_pipelines.lifecycle.submit import Job, attach, submit
from ml_pipelines.lifecycle.summary import JobSummary, describe, list_jobs, read_logs

__all__ = [
    "Job",
    "JobSummary",
    "Platform",
    "attach",
    "cancel",
    "check_storage_urls",
    "describe",
    "follow",
    "list_jobs",
    "open_backend",
    "open_platform",
    "read_logs",
    "submit",
    "sweep",
]
