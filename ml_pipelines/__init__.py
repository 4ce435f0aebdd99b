"""Train on a GPU cluster without touching Kubernetes: Dagster pipelines over Ray and KubeRay."""

__version__ = "0.1.0"
