"""One diagnosis of an attempt that waits, and when it is called hopeless."""

from __future__ import annotations

from dataclasses import dataclass

from ml_pipelines.job.verdict import VerdictClass

CONFIG_GRACE_S = 120.0  # a secret may be created a moment after the job


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why an attempt does not run yet.

    `hopeless` means that it can't heal by itself: it fails once it has been true for `grace_s`
    seconds. `key` names the trouble, so that it is known again in the next observation. `cls` is
    the verdict's class, should it end the attempt.
    """

    sentence: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    hopeless: bool = False
    cls: VerdictClass = VerdictClass.TIMEOUT
    grace_s: float = 0.0
    key: str = "start"
