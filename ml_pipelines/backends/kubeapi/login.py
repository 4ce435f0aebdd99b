"""How to reach a cluster and as whom: a kubeconfig's context, or the pod's own account."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ml_pipelines.backends.kubeapi.errors import KubeUnavailable
from ml_pipelines.errors import InvalidInput

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_S = 60.0  # a plugin may have a person confirm something, but not for ever
_PROVIDERS = frozenset({"gcp", "oidc"})
_OTHER_WAYS = (
    "token", "tokenFile", "exec", "client-certificate", "client-certificate-data", "username",
)  # fmt: skip
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
            context = merged["contexts"].get_with_name(self.context)["context"]
            cluster = merged["clusters"].get_with_name(context["cluster"])["cluster"]
            entry = merged["users"].get_with_name(context.safe_get("user") or "", safe=True)
            user = None
            if entry is not None and entry.safe_get("user"):
                user = entry["user"]
                self._run_plugin(user, entry.path, cluster)
            loader = KubeConfigLoader(merged, self.context, config_base_path=None)
            self._load(loader, configuration, user)
        except (ConfigException, AttributeError, KeyError, TypeError, ValueError, OSError) as err:
            raise InvalidInput(
                "MLP_KUBE_CONTEXT", self.context, f"can't be read in {self.paths}: {err}"
            ) from err
        if not cluster.safe_get("server"):
            raise InvalidInput("MLP_KUBE_CONTEXT", self.context, "names a cluster without a server")
        configuration.refresh_api_key_hook = None
        _set_proxy(configuration, str(cluster.safe_get("proxy-url") or ""))
        return configuration

    def _load(self, loader: Any, configuration: Any, user: Any) -> None:
        """Have the official loader read it, within a time where it asks an auth-provider anew.

        It knows `gcp` and `oidc`; with any other it would go on as nobody.
        """
        from kubernetes.config.config_exception import ConfigException

        provider = user.safe_get("auth-provider") if user is not None else None
        name = str(provider.get("name") or "") if isinstance(provider, dict) else ""
        if not name:
            loader.load_and_set(configuration)
            return
        if name not in _PROVIDERS and not any(user.safe_get(field) for field in _OTHER_WAYS):
            raise InvalidInput(
                "MLP_KUBE_CONTEXT", self.context,
                f"logs in by auth-provider {name!r}, which is not supported",
                remedy="Have the kubeconfig written anew with an exec plugin.",
            )  # fmt: skip
        try:
            _within(PLUGIN_S, lambda: loader.load_and_set(configuration))
        except ConfigException:
            raise
        except Exception as err:
            raise KubeUnavailable(
                f"context {self.context!r}: auth-provider {name!r} gave no credentials: {err}.",
                remedy="Log in again, or have the kubeconfig written anew with an exec plugin.",
            ) from err

    def _run_plugin(self, user: Any, path: str | None, cluster: Any) -> None:
        """Put what the user's credential plugin gives in the place of the plugin.

        Left to itself the official loader only logs that a plugin failed, goes on as nobody, and
        waits for a plugin without end.
        """
        from kubernetes.config.exec_provider import ExecProvider

        if not user.safe_get("exec") or user.safe_get("token") or user.safe_get("tokenFile"):
            return
        provider = ExecProvider(user["exec"], _folder_of(path), cluster)
        try:
            given = _within(PLUGIN_S, provider.run)
        except Exception as err:
            raise KubeUnavailable(
                f"context {self.context!r}: {user['exec']['command']} gave no credentials: {err}.",
                remedy="Log in again.",
            ) from err
        del user.value["exec"]
        if given.get("token"):
            user.value["token"] = given["token"]
        for ours, its in (("certificate", "Certificate"), ("key", "Key")):
            if given.get(f"client{its}Data"):
                data = base64.b64encode(given[f"client{its}Data"].encode()).decode()
                user.value[f"client-{ours}-data"] = data


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


def _within(limit_s: float, run: Callable[[], Any]) -> Any:
    """The result of `run`; TimeoutError where it takes longer (it then goes on unheeded)."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            done.append(run())
        except BaseException as err:  # noqa: BLE001 - raised again below, in the caller's thread
            failed.append(err)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return done[0]


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
