"""What a real cluster showed of RayJobs, as observations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_pipelines.backends.kuberay import views
from ml_pipelines.job.observation import Observation

Object = dict[str, Any]

SPOT = {
    "cloud.google.com/gke-spot": "true",
    "node.kubernetes.io/instance-type": "g2-standard-48",
}
NODES = {"spot-0": SPOT, "spot-1": SPOT}


@dataclass(frozen=True)
class Moment:
    """All objects of a namespace at `at_s`."""

    at_s: float
    objects: Object

    def seen(self, name: str = "") -> Observation:
        """What is seen of the RayJob of that name, or of the only one."""
        jobs = [one for one in self.objects["rayjobs"] if name in {"", one["metadata"]["name"]}]
        if not jobs:
            return Observation(None)
        (job,) = jobs
        own = job["metadata"]
        cluster = (job.get("status") or {}).get("rayClusterName")
        return views.observation(
            job,
            cluster=_first(self.objects["rayclusters"], lambda one: one["name"] == cluster),
            pods=[
                pod
                for pod in self.objects["pods"]
                if pod["metadata"]["labels"]["ray.io/cluster"].rpartition("-")[0] == own["name"]
            ],
            events=self.objects["events"],
            nodes=NODES,
            workload=_first(
                self.objects["workloads"],
                lambda one: one["ownerReferences"][0]["uid"] == own["uid"],
            ),
        )


def _first(objects: list[Object], fits: Any) -> Object | None:
    return next((one for one in objects if fits(one["metadata"])), None)


def moments(recording: str) -> Iterator[Moment]:
    """The moments of a recording, in order."""
    path = Path(__file__).with_name(f"{recording}.json")
    for moment in json.loads(path.read_text(encoding="utf-8")):
        yield Moment(moment["at_s"], moment)


def last(recording: str) -> Moment:
    """Its last moment."""
    return list(moments(recording))[-1]
