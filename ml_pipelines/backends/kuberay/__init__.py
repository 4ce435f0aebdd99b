"""RayJobs on Kubernetes, run by the KubeRay operator."""

from ml_pipelines.backends.kuberay.backend import KubeRayBackend

__all__ = ["KubeRayBackend"]
