"""How to reach a cluster and as whom: a kubeconfig's context, or the pod's own account."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ml_pipelines.backends.kubeapi.errors import KubeUnavailable
from ml_pipelines.errors import InvalidInput

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_OUTSIDE = "Set MLP_KUBE_CONTEXT and KUBECONFIG to a cluster, or MLP_BACKEND=local to do without."


class Login(Protocol):
    """Reads address and credentials, from scratch at each call."""

    @property
    def context(self) -> str:
        """The context's name; empty for a pod."""

    @property
    def namespace(self) -> str:
        """Where our objects are."""

    def read(self) -> Any:
        """The official client's Configuration, with no hook that would look at a clock."""


@dataclass(frozen=True, slots=True)
class KubeconfigLogin:
    """One context of the kubeconfig files in `paths` (as in KUBECONFIG, joined by `:`)."""

    paths: str
    context: str
    namespace: str

    def read(self) -> Any:
        from kubernetes.client import Configuration
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.kube_config import KubeConfigLoader

        merged = _merged(self.paths)
        configuration = Configuration()
        try:
            loader = KubeConfigLoader(merged, self.context, config_base_path=None)
            context = loader.current_context["context"]
            cluster = merged["clusters"].get_with_name(context["cluster"])["cluster"].value
            loader.load_and_set(configuration)
        except (ConfigException, KeyError, TypeError, ValueError, OSError) as err:
            raise InvalidInput(
                "MLP_KUBE_CONTEXT", self.context, f"can't be read in {self.paths}: {err}"
            ) from err
        if not cluster.get("server"):
            raise InvalidInput("MLP_KUBE_CONTEXT", self.context, "names a cluster without a server")
        configuration.refresh_api_key_hook = None
        self._need_plugin(merged, context, configuration)
        _set_proxy(configuration, str(cluster.get("proxy-url") or ""))
        return configuration

    def _need_plugin(self, merged: Any, context: Mapping[str, Any], configuration: Any) -> None:
        """The official loader only logs that a plugin failed, and goes on as nobody."""
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.exec_provider import ExecProvider

        user = merged["users"].get_with_name(context.get("user") or "", safe=True)
        plugin = user["user"].safe_get("exec") if user is not None else None
        if not plugin or configuration.api_key or configuration.cert_file:
            return
        try:
            ExecProvider(user["user"]["exec"], _folder_of(user.path)).run()
        except (ConfigException, OSError) as err:
            why = str(err)
        else:
            why = "it gave neither a token nor a certificate"
        raise KubeUnavailable(
            f"context {self.context!r}: its plugin {plugin['command']} gave no credentials: {why}.",
            remedy="Log in again.",
        )


@dataclass(frozen=True, slots=True)
class PodLogin:
    """The service account of the pod we run in."""

    namespace: str
    environ: Mapping[str, str]
    folder: Path = ACCOUNT_FOLDER
    context: str = ""

    def read(self) -> Any:
        from kubernetes.client import Configuration
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader

        configuration = Configuration()
        try:
            InClusterConfigLoader(
                token_filename=str(self.folder / "token"),
                cert_filename=str(self.folder / "ca.crt"),
                try_refresh_token=False,
                environ=self.environ,
            ).load_and_set(configuration)
        except (ConfigException, OSError) as err:
            raise KubeUnavailable(f"the pod's own account can't be read: {err}") from err
        _set_proxy(configuration, "")
        return configuration


def find(context: str, namespace: str, environ: Mapping[str, str]) -> Login:
    """Where to log in: the context named, else the kubeconfig's current one, else the pod's account.

    Nothing is sent. Raises InvalidInput where there is nothing, or no such context.
    """
    paths = environ.get("KUBECONFIG") or str(Path(environ.get("HOME") or "~") / ".kube/config")
    there = any(Path(part).expanduser().is_file() for part in paths.split(os.pathsep) if part)
    if there:
        return _in_kubeconfig(paths, context, namespace)
    if context:
        raise InvalidInput("MLP_KUBE_CONTEXT", context, f"can't be found: no kubeconfig at {paths}")
    if environ.get("KUBERNETES_SERVICE_HOST") and not environ.get("KUBECONFIG"):
        return PodLogin(namespace or _account_namespace(), environ)
    raise InvalidInput(
        "KUBECONFIG", paths, "is no file, and this is no pod: there is no cluster to talk to",
        remedy=_OUTSIDE,
    )  # fmt: skip


def _in_kubeconfig(paths: str, context: str, namespace: str) -> KubeconfigLogin:
    merged = _merged(paths).value
    contexts = {str(entry["name"]): entry for entry in merged.get("contexts") or ()}
    chosen = context or str(merged.get("current-context") or "")
    if not chosen:
        raise InvalidInput(
            "MLP_KUBE_CONTEXT", "", f"is not set, and {paths} has no current context",
            remedy=f"Name one of: {', '.join(sorted(contexts)) or '(none there)'}.",
        )  # fmt: skip
    if chosen not in contexts:
        raise InvalidInput(
            "MLP_KUBE_CONTEXT", chosen, f"is no context of {paths}",
            remedy=f"Name one of: {', '.join(sorted(contexts)) or '(none there)'}.",
        )  # fmt: skip
    own = contexts[chosen]["context"].safe_get("namespace") if contexts[chosen] else ""
    return KubeconfigLogin(paths, chosen, namespace or own or "default")


def _merged(paths: str) -> Any:
    """The kubeconfig files as one, in the official loader's form."""
    import yaml
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(paths).config
    except (ConfigException, OSError, yaml.YAMLError, AttributeError, TypeError, KeyError) as err:
        raise InvalidInput("KUBECONFIG", paths, f"can't be read: {err}") from err
    if merged is None:
        raise InvalidInput("KUBECONFIG", paths, "is no file")
    return merged


def _folder_of(path: str | None) -> str | None:
    return str(Path(path).absolute().parent) if path else None


def _account_namespace() -> str:
    try:
        return (ACCOUNT_FOLDER / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def _set_proxy(configuration: Any, own: str) -> None:
    """The official loader takes HTTP_PROXY for https servers too, and knows no `proxy-url`."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(configuration.host)
    outer = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    configuration.proxy = own or outer
    configuration.no_proxy = None
