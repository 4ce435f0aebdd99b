"""Has the operator look at a job at once when its driver has ended: by itself it asks each 3 s.

Any change of the RayJob makes it look; ours is an annotation that says when the log ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_pipelines.backends.kubeapi import KubeError, KubeForbidden, path_of
from ml_pipelines.backends.kuberay.fields import as_dict
from ml_pipelines.spec import naming

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi import Api
    from ml_pipelines.backends.kuberay.watches import Seen

ANNOTATION = naming.label_key("driver_log_ended")
# After the log's end: Ray writes a driver's status a moment later, and sometimes a long one.
AFTER_S = (0.15, 0.5, 1.2)


@dataclass(slots=True)
class _Ended:
    since: float
    done: int = 0


class Nudges:
    """At most three a job; then it is left to the operator, as where we have no right to patch."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ended: dict[str, _Ended] = {}
        self._allowed = True

    def look(self, name: str, seen: Seen, *, ended: bool) -> None:
        """Nudge, if it is time; to be called at each look."""
        status = as_dict(seen.rayjob.get("status")) if seen.rayjob else {}
        # "Running" and "PENDING" is a driver that has not begun: Ray itself has closed its log then.
        running = status.get("jobDeploymentStatus") == "Running"
        if not ended or not running or status.get("jobStatus") != "RUNNING":
            self._ended.pop(name, None)
            return
        now = self._api.clock.monotonic()
        known = self._ended.setdefault(name, _Ended(now))
        if self._allowed and known.done < len(AFTER_S) and now - known.since >= AFTER_S[known.done]:
            known.done += 1
            self._nudge(name)

    def forget(self, name: str) -> None:
        """It is over."""
        self._ended.pop(name, None)

    def _nudge(self, name: str) -> None:
        at = self._api.clock.now().isoformat()
        change = {"metadata": {"annotations": {ANNOTATION: at}}}
        try:
            self._api.patch(path_of("rayjobs", self._api.namespace, name), change, budget_s=0.0)
        except KubeForbidden:
            self._allowed = False
        except KubeError:
            pass  # the operator's own time comes soon
