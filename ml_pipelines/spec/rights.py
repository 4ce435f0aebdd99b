"""What whoever follows jobs must be allowed to do on Kubernetes: the Roles in `deploy/`, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on one kind of object.

    `needed_for` is what goes without it: "" means no job at all. `subresource` as in `pods/log`.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    subresource: str = ""
    needed_for: str = ""

    @property
    def shown(self) -> str:
        """The kind as `kubectl auth can-i` writes it."""
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{name}/{self.subresource}" if self.subresource else name


_SEE = ("get", "list", "watch")

# The Role `ml-pipelines-runs`, in the namespace that jobs run in.
OF_RUNS = (
    Right("ray.io", "rayjobs", ("create", *_SEE, "delete")),
    Right("ray.io", "rayjobs", ("patch",), needed_for="hearing of a job's end at once, not in 3 s"),
    Right("ray.io", "rayclusters", _SEE),
    Right("", "pods", _SEE),
    Right("", "events", _SEE, needed_for="saying why a pod waits"),
    Right("", "pods", ("get",), subresource="log"),
    Right("", "namespaces", ("get",)),  # its own: anew under the same name, it is another place
    Right("kueue.x-k8s.io", "workloads", _SEE, needed_for="saying why a job waits in its queue"),
)
# The ClusterRole `ml-pipelines-nodes`: nodes belong to no namespace.
OF_NODES = (Right("", "nodes", _SEE, needed_for="saying which nodes a pool has"),)
