"""One Ray head of ours: started, found again, stopped, its strays reaped.

A head is `ray start --head --block` in a session of its own, with its own ports, a short folder
under /tmp and a token. Everything that it starts inherits MLP_CLUSTER_ID and a working folder
below that, by which strays are found. Its record is written before it is started, so nothing can
be started and forgotten.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ml_pipelines.backends.local import processes
from ml_pipelines.backends.local.jobsapi import JobsApi
from ml_pipelines.backends.local.machine import boot_id
from ml_pipelines.backends.local.record import HeadRecord, Size, records
from ml_pipelines.backends.local.submission import DOLLAR_VARIABLE
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.settings import CLUSTER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ml_pipelines.clock import Clock

OBJECT_STORE_BYTES = 300 * 2**20
# Ray turns 127.0.0.1 into the address of the day; a laptop that changes its network would lose
# its head. All of 127/8 is loopback on Linux, elsewhere only that one.
NODE_ADDRESS = "127.0.0.2" if sys.platform == "linux" else ""
# What a head takes over from the environment of the process that first needed it: nothing that
# would change a job's outcome, and credentials for the lake.
_KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH",
     "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
     "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
     "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)  # fmt: skip
_KEPT_PREFIXES = ("LC_", "AWS_", "GOOGLE_", "AZURE_", "CUDA_", "NCCL_", "GLOO_")
_PORTS = (
    "port", "dashboard-port", "metrics-export-port", "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port", "runtime-env-agent-port", "ray-client-server-port",
    "node-manager-port", "object-manager-port",
)  # fmt: skip


class Head(Protocol):
    """A head as the operator sees it.

    `terminate` asks it to end, `kill` ends all of its processes now, `forget` removes its folder
    and its record. `supervisor_log` grows when a job's driver begins and ends. `obituary` says how
    it ended, with its last words. `dashboard` is host:port.
    """

    @property
    def id(self) -> str: ...
    @property
    def size(self) -> Size: ...
    @property
    def dashboard(self) -> str: ...
    @property
    def api(self) -> JobsApi: ...
    def alive(self) -> bool: ...
    def driver_log(self, job_id: str) -> Path: ...
    def supervisor_log(self, job_id: str) -> Path: ...
    def obituary(self) -> str: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def forget(self) -> None: ...


class Heads(Protocol):
    """Where heads come from: `found` are those of an operator before us, dead or alive."""

    def start(self, size: Size) -> Head: ...
    def found(self) -> Sequence[Head]: ...


class RayHead:
    """A real one."""

    def __init__(
        self, record: HeadRecord, path: Path, clock: Clock,
        *, process: subprocess.Popen[bytes] | None = None,
    ) -> None:  # fmt: skip
        self._record = record
        self._path = path
        self._clock = clock
        self._process = process
        self.api = JobsApi(f"http://{self.dashboard}", record.token)

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def size(self) -> Size:
        return self._record.size

    @property
    def dashboard(self) -> str:
        return f"127.0.0.1:{self._record.ports['dashboard-port']}"

    def alive(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            return False
        return self._record.here()

    def driver_log(self, job_id: str) -> Path:
        return self._logs / f"job-driver-{job_id}.log"

    def supervisor_log(self, job_id: str) -> Path:
        return self._logs / "jobs" / f"supervisor-{job_id}.log"

    def obituary(self) -> str:
        code = self._process.poll() if self._process else None
        how = "is gone" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return f"The Ray head (process {self._record.pid}) {how}. {self._last_words()}".strip()

    def terminate(self) -> None:
        if self._record.here():
            processes.signal_to(self._record.pid, signal.SIGTERM)

    def kill(self) -> None:
        pids = []
        if self._record.here():
            pids = [self._record.pid, *processes.descendants(self._record.pid)]
        left = processes.kill_all(pids, self._record.mark(), self._clock)
        if self._process is not None:
            self._process.poll()
        if left:
            raise BackendUnavailable(f"Processes {left} of head {self.id} don't end.")

    def forget(self) -> None:
        self.api.close()
        shutil.rmtree(self._record.folder, ignore_errors=True)
        self._path.with_suffix(".log").unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    @property
    def _logs(self) -> Path:
        return Path(self._record.folder, "r", "session_latest", "logs")

    def _last_words(self) -> str:
        try:
            text = self._path.with_suffix(".log").read_text(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "Its last words: " + " | ".join(lines[-3:])[-400:] if lines else ""


class RayHeads:
    """Starts real heads and keeps their records in a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def start(self, size: Size) -> RayHead:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ident = secrets.token_hex(6)
        # Short: Ray makes sockets below it, whose paths may have 107 bytes.
        folder = tempfile.mkdtemp(prefix="mlp-", dir="/tmp")
        Path(folder, "w").mkdir(mode=0o700)
        record = HeadRecord(
            id=ident, boot=boot_id(), folder=folder, token=secrets.token_hex(32),
            size=size, ports=dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True)),
        )  # fmt: skip
        path = record.write(self._folder)
        process = self._launch(record, path.with_suffix(".log"))
        birth = processes.birth_of(process.pid) or 0.0
        record = replace(record, pid=process.pid, birth=birth)
        record.write(self._folder)
        return RayHead(record, path, self._clock, process=process)

    def found(self) -> list[RayHead]:
        return [
            RayHead(record, self._folder / f"{record.id}.json", self._clock)
            for record in records(self._folder)
        ]

    def _launch(self, record: HeadRecord, log: Path) -> subprocess.Popen[bytes]:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                command(record),
                env=environment(record, os.environ),
                cwd=Path(record.folder, "w"),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)


def command(record: HeadRecord) -> list[str]:
    """The command that starts it."""
    size = record.size
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        "--disable-usage-stats", "--dashboard-host=127.0.0.1",
        f"--temp-dir={record.folder}/r",
        f"--num-cpus={size.num_cpus}", f"--num-gpus={size.num_gpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        *([f"--node-ip-address={NODE_ADDRESS}"] if NODE_ADDRESS else []),
        *(f"--{name}={port}" for name, port in record.ports.items()),
    ]  # fmt: skip


def environment(record: HeadRecord, ours: Mapping[str, str]) -> dict[str, str]:
    """The head's environment, which drivers inherit: the least, a token, and the marker."""
    kept = {
        name: value
        for name, value in ours.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    binaries = str(Path(sys.executable).parent)
    kept["PATH"] = f"{binaries}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {
        **kept,
        CLUSTER_VARIABLE: record.id,
        DOLLAR_VARIABLE: "$",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": record.token,
        # Without it a worker that asks for its cluster finds every Ray of this machine.
        **({"RAY_ADDRESS": f"{NODE_ADDRESS}:{record.ports['port']}"} if NODE_ADDRESS else {}),
        "RAY_USAGE_STATS_ENABLED": "0",
        # A driver outlives its dead cluster by a minute otherwise.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    }


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, outside what the system and Ray hand out."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 500):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise BackendUnavailable("No free ports between 20000 and 32000 on this machine.")
