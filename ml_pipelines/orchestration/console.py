"""Dagster's run log for a person at a terminal: what happened to the jobs, nothing else."""

from __future__ import annotations

import logging
import sys

import dagster as dg


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        meta = getattr(record, "dagster_meta", {})
        step = meta.get("step_key") or "run"
        text = meta.get("orig_message") or record.getMessage()
        return f"{self.formatTime(record, '%H:%M:%S')}  {step:<16} {text}"


def _is_ours(record: logging.LogRecord) -> bool:
    meta = getattr(record, "dagster_meta", {})
    return meta.get("dagster_event") is None and record.levelno >= logging.INFO


def _plain_console(_context: dg.InitLoggerContext) -> logging.Logger:
    logger = logging.getLogger("ml_pipelines.console")
    logger.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    handler.addFilter(_is_ours)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    return logger


plain_console = dg.LoggerDefinition(
    _plain_console, description="One short line for each of the job's own messages."
)
