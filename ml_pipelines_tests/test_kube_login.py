"""Which cluster, as whom, and what happens when credentials expire."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.backends.kubeapi import (
    Api,
    KubeUnauthorized,
    KubeUnavailable,
    connect,
    login,
    path_of,
)
from ml_pipelines.backends.kubeapi.login import PodLogin, find
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import BackendUnavailable, InvalidInput
from ml_pipelines_tests.fake_kube import FakeKube

JOBS = path_of("rayjobs", "ads")
JOB = path_of("rayjobs", "ads", "train")
LOG = path_of("pods", "ads", "head", "log")


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    """A fake API server that lets in whoever has the token `t0`."""
    with FakeKube() as server:
        server.tokens = {"t0"}
        server.objects.put(JOB, {})
        log = server.log("ads", "head", "log")
        log.write(b"one\n")
        log.end()
        yield server


class Credentials:
    """A source of credentials whose token the test changes."""

    def __init__(self, folder: Path) -> None:
        self.token_file = folder / "token"
        self.turn(0)

    def turn(self, number: int) -> None:
        """The next token is the only good one."""
        self.token_file.write_text(f"t{number}")

    def as_file(self) -> dict[str, Any]:
        """A kubeconfig user whose token is in a file."""
        return {"tokenFile": str(self.token_file)}

    def as_plugin(self, expires: str = "2000-01-01T00:00:00Z") -> dict[str, Any]:
        """A kubeconfig user whose token a command prints; by a clock that is off it's long old."""
        version = "client.authentication.k8s.io/v1"
        code = (
            "import json, pathlib, sys; path = pathlib.Path(sys.argv[1]);"
            "open(str(path) + '.runs', 'a').write('x');"
            f"print(json.dumps(dict(apiVersion='{version}', kind='ExecCredential',"
            f"status=dict(token=path.read_text(), expirationTimestamp='{expires}'))))"
        )
        return {
            "exec": {
                "apiVersion": version,
                "command": sys.executable,
                "args": ["-c", code, str(self.token_file)],
            }
        }

    def runs(self) -> int:
        """How often the command was run."""
        return len(Path(f"{self.token_file}.runs").read_text())


@pytest.mark.parametrize("source", ["file", "plugin"])
def test_a_token_that_expires_three_times_in_a_run_is_read_again(
    kube: FakeKube, clock: FakeClock, tmp_path: Path, source: str
) -> None:
    """Case C13: on a request, on a log, on a deletion; each time one more request, no more."""
    mine = Credentials(tmp_path)
    user = mine.as_file() if source == "file" else mine.as_plugin()
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, user=user))}
    api = connect(clock=clock, environ=environ)
    api.get(JOB)
    calls = [
        lambda: api.create(JOBS, {"metadata": {"name": "new"}}),
        lambda: _read_log(api),
        lambda: api.delete(JOB),
    ]
    for number, call in enumerate(calls, start=1):
        mine.turn(number)
        kube.tokens = {f"t{number}"}
        before = len(kube.asked)
        call()
        assert [one.status for one in kube.asked[before:]] in ([401, 200], [401, 201])
    assert len(kube.objects.listed(_place(JOBS), "", "")) == 1
    if source == "plugin":  # not at each request, although its clock says that all is expired
        assert mine.runs() == 4
    api.close()


def test_a_pods_account_follows_its_token_file(
    kube: FakeKube, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C13: the kubelet replaces the token; in a pod, namespace and account are its own."""
    mine = Credentials(tmp_path)
    (tmp_path / "ca.crt").write_text("none needed here")
    (tmp_path / "namespace").write_text("pods-own\n")
    monkeypatch.setattr(login, "ACCOUNT_FOLDER", tmp_path)
    host, port = kube.url.removeprefix("http://").split(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "HOME": "/none"}
    found = find("", "", environ)
    assert (found.context, found.namespace) == ("", "pods-own")
    api = Api(_Plain(PodLogin(found.namespace, environ, tmp_path)), clock=clock)
    for number in range(4):
        mine.turn(number)
        kube.tokens = {f"t{number}"}
        api.get(JOB)
    assert "the pod's own account" in api.where
    api.close()


def test_a_login_that_stays_refused_ends_soon_and_does_nothing(
    kube: FakeKube, clock: FakeClock, tmp_path: Path
) -> None:
    """Case C13: bounded, told as authentication, temporary (never a failed job), nothing deleted."""
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, token="stolen-secret"))}
    api = connect(clock=clock, environ=environ)
    with pytest.raises(KubeUnauthorized, match="authentication") as caught:
        api.delete(JOB)
    assert isinstance(caught.value, BackendUnavailable)
    assert len(kube.asked) == 3
    assert clock.elapsed <= 3
    assert kube.objects.get(JOB) is not None
    assert "'fake'" in str(caught.value)
    assert "'ads'" in str(caught.value)
    assert "stolen-secret" not in str(caught.value)


def test_credentials_that_vanish_are_told_beside_the_refusal(
    kube: FakeKube, clock: FakeClock, tmp_path: Path
) -> None:
    """A token file that is gone at the wrong moment: what was known is tried, and both are told."""
    mine = Credentials(tmp_path)
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, user=mine.as_file()))}
    api = connect(clock=clock, environ=environ)
    mine.token_file.unlink()
    assert api.get(JOB)
    kube.tokens = {"t1"}
    with pytest.raises(KubeUnauthorized, match="token"):
        api.get(JOB)


def test_a_plugin_that_fails_is_quoted(kube: FakeKube, clock: FakeClock, tmp_path: Path) -> None:
    """Case I8: an expired login says what the plugin said, and never goes on as nobody."""
    user = _plugin("import sys; sys.exit('Your session has expired: run `cloud login`')")
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, user=user))}
    with pytest.raises(KubeUnavailable, match="session has expired") as caught:
        connect(clock=clock, environ=environ)
    assert "'fake'" in str(caught.value)
    assert not kube.asked


def test_a_plugin_that_never_ends_is_given_up(
    kube: FakeKube, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that waits for somebody who isn't there must not hold a run for ever."""
    monkeypatch.setattr(login, "PLUGIN_S", 0.2)
    user = _plugin("import time; time.sleep(3)")
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, user=user))}
    with pytest.raises(KubeUnavailable, match=r"no answer within 0\.2 s"):
        connect(clock=clock, environ=environ)


def test_an_auth_provider_that_never_answers_is_given_up(
    kube: FakeKube, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C13: the official client asks without a time-out of its own."""
    monkeypatch.setattr(login, "PLUGIN_S", 0.2)
    config = {"cmd-path": sys.executable, "cmd-args": "-c __import__('time').sleep(3)"}
    user = {"auth-provider": {"name": "gcp", "config": config}}
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, user=user))}
    with pytest.raises(KubeUnavailable, match=r"auth-provider 'gcp' .*no answer within 0\.2 s"):
        connect(clock=clock, environ=environ)


def test_an_auth_provider_that_is_not_known_is_refused(
    kube: FakeKube, clock: FakeClock, tmp_path: Path
) -> None:
    """The official client would go on as nobody."""
    user = {"auth-provider": {"name": "azure", "config": {}}}
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, user=user))}
    with pytest.raises(InvalidInput, match="'azure', which is not supported"):
        connect(clock=clock, environ=environ)


def test_contexts_are_chosen_by_name(clock: FakeClock, tmp_path: Path) -> None:
    """Several contexts in several files: the named one, else the current; namespaces likewise."""
    environ = {"KUBECONFIG": f"{_contexts(tmp_path, 'a')}:{_contexts(tmp_path, 'b')}"}
    current = connect(clock=clock, environ=environ)
    named = connect(context="b-two", clock=clock, environ=environ)
    moved = connect(context="b-one", namespace="other", clock=clock, environ=environ)
    assert (current.context, current.namespace, current.server) == ("b-one", "ml", "http://b1.test")
    assert (named.context, named.namespace, named.server) == ("b-two", "default", "http://b2.test")
    assert moved.namespace == "other"
    assert connect(context="a-one", clock=clock, environ=environ).server == "http://a1.test"


@pytest.mark.parametrize(
    ("text", "context", "says"),
    [
        (None, "", "there is no cluster to talk to"),
        (None, "prod", "'prod' can't be found"),
        ("{", "", "can't be read"),
        ("", "", "can't be read"),
        ("[1, 2]", "", "can't be read"),
        ("current-context: x\ncontexts: []", "", "'x' is no context of"),
        ("contexts: []", "", "no current context"),
        ("good", "prod", "Name one of: b-one, b-two"),
        ("broken", "", "can't be read in"),
        ("nowhere", "", "names a cluster without a server"),
    ],
)
def test_without_a_cluster_one_sentence_says_so(
    clock: FakeClock, tmp_path: Path, text: str | None, context: str, says: str
) -> None:
    """Case I8: no kubeconfig, a broken one, an unknown context; never localhost:80."""
    path = tmp_path / "config"
    if text in {"good", "broken", "nowhere"}:
        config = json.loads(_contexts(tmp_path, "b").read_text())
        if text == "broken":
            del config["clusters"]
        elif text == "nowhere":
            config["clusters"][0]["cluster"] = {"server": ""}
        path.write_text(json.dumps(config))
    elif text is not None:
        path.write_text(text)
    environ = {"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(InvalidInput) as caught:
        connect(context=context, clock=clock, environ=environ)
    assert says in str(caught.value)
    assert "localhost" not in str(caught.value)


@pytest.mark.parametrize("server", ["refused", "http://no-such-host.invalid:6443"])
def test_a_server_that_can_not_be_reached_is_named(
    clock: FakeClock, tmp_path: Path, server: str
) -> None:
    """Case I8: context, namespace, server and why, in one sentence, after the budget."""
    if server == "refused":
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = json.loads(_contexts(tmp_path, "b").read_text())
    config["clusters"][0]["cluster"]["server"] = server
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    api = connect(clock=clock, environ={"KUBECONFIG": str(path)})
    began = time.monotonic()
    with pytest.raises(KubeUnavailable) as caught:
        api.get(JOB)
    for word in (server, "'b-one'", "'ml'", f"GET {JOB}"):
        assert word in str(caught.value)
    assert "refused" in str(caught.value) or "resolved" in str(caught.value)
    assert 10 < clock.elapsed + time.monotonic() - began < 60


def test_a_proxy_of_the_environment_is_used_for_what_it_is_for(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kube: FakeKube
) -> None:
    """HTTPS_PROXY is no proxy for http, and the kubeconfig's own `proxy-url` comes first."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path, token="t0"))}
    assert connect(clock=clock, environ=environ).get(JOB)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(KubeUnavailable):
        connect(clock=clock, environ=environ).get(JOB)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert connect(clock=clock, environ=environ).get(JOB)


class _Plain:
    """A pod's login over http: the fake speaks no TLS."""

    def __init__(self, pod: PodLogin) -> None:
        self._pod = pod
        self.context = pod.context
        self.namespace = pod.namespace

    def read(self) -> Any:
        configuration = self._pod.read()
        configuration.host = configuration.host.replace("https://", "http://")
        configuration.ssl_ca_cert = None
        return configuration


def _read_log(api: Api) -> bytes:
    with api.stream(LOG, query={"container": "log"}, read_timeout_s=1.0) as chunks:
        return b"".join(chunks)


def _place(path: str) -> Any:
    from ml_pipelines_tests.fake_kube_objects import Place

    return Place.of(path)


def _plugin(code: str) -> Mapping[str, Any]:
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": ["-c", code]}}


def _contexts(folder: Path, tag: str) -> Path:
    path = folder / f"{tag}.json"
    path.write_text(
        json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": f"{tag}-one",
            "clusters": [
                {"name": f"{tag}1", "cluster": {"server": f"http://{tag}1.test/"}},
                {"name": f"{tag}2", "cluster": {"server": f"http://{tag}2.test"}},
            ],
            "users": [{"name": "me", "user": {"token": "x"}}],
            "contexts": [
                {"name": f"{tag}-one",
                 "context": {"cluster": f"{tag}1", "user": "me", "namespace": "ml"}},
                {"name": f"{tag}-two", "context": {"cluster": f"{tag}2", "user": "me"}},
            ],
        })
    )  # fmt: skip
    return path
