"""The last word on an attempt: the engine's verdict, the driver's log and the result together."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ml_pipelines.job import traces
from ml_pipelines.job.verdict import Verdict, VerdictClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ml_pipelines.job.known import Known
    from ml_pipelines.job.losses import Loss
    from ml_pipelines.job.phase import Standing
    from ml_pipelines.job.traces import Trace

# A driver that fails so soon after it lost a machine failed because of that.
LOSS_WINDOW_S = 120.0

# Failures after which a result that was already committed still counts.
_NOT_THE_USERS = frozenset(
    {VerdictClass.INFRA, VerdictClass.PREEMPTED, VerdictClass.UNKNOWN, VerdictClass.TIMEOUT}
)


def verdict_of(
    standing: Standing,
    known: Known,
    tail: Sequence[str],
    *,
    owes_result: bool = False,
    has_result: bool = False,
) -> Verdict:
    """The verdict of an attempt whose `standing` is an end.

    `tail` holds the last lines of the driver's log, without newlines (100 are plenty);
    `has_result` says whether a result was committed under a claim that holds.
    """
    verdict = standing.verdict
    if verdict is None:
        raise ValueError(f"{standing.phase} is not an end, so it has no verdict")
    if verdict.ok:
        return _ended_without_result(verdict) if owes_result and not has_result else verdict
    if verdict.cls is VerdictClass.USER:
        verdict = _of_driver(verdict, known, tail)
    if owes_result and has_result and verdict.cls in _NOT_THE_USERS:
        return _saved_by_result(verdict)
    return verdict


def cancelled(by: str, reason: str = "") -> Verdict:
    """The verdict of a job that one of us cancelled on somebody's order."""
    why = f": {reason}" if reason else ""
    return Verdict(VerdictClass.CANCELLED, f"cancelled by {by}{why}", (f"cancelled by {by}{why}",))


def _ended_without_result(verdict: Verdict) -> Verdict:
    return Verdict(
        VerdictClass.USER,
        "the driver ended without a result",
        (*verdict.evidence, "no result was committed under a claim that holds"),
        "Call run.result(...) once before the driver ends.",
        exit_code=verdict.exit_code,
        cause="no result",
    )


def _saved_by_result(verdict: Verdict) -> Verdict:
    return Verdict(
        VerdictClass.SUCCESS,
        "succeeded",
        ("the result was committed", *verdict.evidence),
        warnings=(f"after the result was committed, {verdict.sentence}",),
        exit_code=verdict.exit_code,
    )


# --- a driver that failed -------------------------------------------------------------------


def _of_driver(verdict: Verdict, known: Known, tail: Sequence[str]) -> Verdict:
    """Why the driver failed: lost machines first, then what its log says, then its exit code.

    Where nothing of the log could be read, what the engine's message holds of it serves.
    """
    message = known.done.message.splitlines() if known.done else []
    tail = tail or message[1:]
    trace = traces.last_trace(tail)
    quoted = trace.lines if trace is not None else tuple(traces.plain(line) for line in tail[-10:])
    verdict = replace(
        verdict,
        evidence=(*verdict.evidence, "\n".join(quoted)) if quoted else verdict.evidence,
        cause=trace.cause if trace is not None else "",
    )
    loss = _recent_loss(known)
    if loss is not None:
        return replace(
            verdict,
            cls=loss.cls,
            sentence=f"{loss.sentence}, and the driver failed with it",
            evidence=(loss.evidence, *verdict.evidence),
            remedy=_MORE_MEMORY if loss.cls is VerdictClass.OOM else _AGAIN,
        )
    return (
        _by_peers(verdict, tail)
        or _by_words(verdict, _telling(message, tail, trace))
        or _by_trace(verdict, trace)
        or _by_exit_code(verdict, tail)
    )


def _recent_loss(known: Known) -> Loss | None:
    """The loss that explains the failure: memory before preemption before the rest."""
    if known.at is None:
        return None
    until = known.done_at if known.done_at is not None else known.at
    since = max(until - LOSS_WINDOW_S, known.began_at)  # on the machines that it had
    recent = [loss for loss in known.losses if loss.at >= since]
    order = (VerdictClass.OOM, VerdictClass.PREEMPTED, VerdictClass.INFRA)
    return min(recent, key=lambda loss: order.index(loss.cls), default=None)


_MORE_MEMORY = "Give it more memory, or make the batch smaller; the same size would fail again."
_AGAIN = "The job is tried again from its last checkpoint."

_OOM, _INFRA, _CONFIG = VerdictClass.OOM, VerdictClass.INFRA, VerdictClass.CONFIG
_UNKNOWN = VerdictClass.UNKNOWN

# What a driver's log says where neither the exit code nor the engine knows better.
_WORDS = (
    (
        re.compile(r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError"),
        _OOM,
        "a GPU ran out of memory",
    ),
    (
        re.compile(r"ray\.exceptions\.OutOfMemoryError|due to the node running low on memory"),
        _OOM,
        "Ray killed a worker because its machine ran out of memory",
    ),
    (re.compile(r"^MemoryError\b"), _OOM, "the driver ran out of memory"),
    (re.compile(r"NVRM: Xid|uncorrectable ECC"), _INFRA, "a GPU failed"),
    (re.compile(r"\[Errno 28\]|No space left on device"), _INFRA, "a disk is full"),
    (
        # Ray itself does not tell a wrong environment from a download that failed.
        re.compile(
            r"runtime_env setup failed|[Ff]ailed to set up runtime env|RuntimeEnvSetupError"
        ),
        _UNKNOWN,
        "the runtime environment could not be made",
    ),
    (
        re.compile(r"Failed to connect to GCS|LocalRayletDiedError|GCS.*unable to connect"),
        _INFRA,
        "the driver lost the Ray head",
    ),
    (
        re.compile(
            r"^\S*python\S*: can't open file|^\S*python\S*: No module named|Error while finding module spec"
        ),
        _CONFIG,
        "the entrypoint doesn't exist",
    ),
)
_REMEDIES = {
    _OOM: _MORE_MEMORY,
    _INFRA: _AGAIN,
    _CONFIG: "Correct the entrypoint, or the folder that travels with the job.",
    _UNKNOWN: "Check the job's code, packages and variables.",
}

# Our own errors, by the name under which a traceback prints them.
_OURS = {
    "InvalidInput": _CONFIG,
    "InvalidData": _CONFIG,
    "DoesNotFit": _CONFIG,
    "StorageDenied": _CONFIG,  # a refusal stays one; it isn't the user's fault either
    "StorageError": _INFRA,
    "StorageUnavailable": _INFRA,
    "Undecided": _INFRA,
    "Superseded": _INFRA,
    "JournalCorrupt": _INFRA,
    "BackendUnavailable": _INFRA,
}
# A Ray process died, and nothing tells us why: it may be ours or the machine's fault.
_DIED = re.compile(r"(Actor|Node|Owner)DiedError|WorkerCrashedError|ActorUnavailableError")


# What a worker says when another one is suddenly gone (NCCL on GPUs, gloo on CPUs).
_PEER_GONE = re.compile(
    r"nccl(System|Remote|Internal)Error|gloo/transport/.*([Cc]onnection|[Tt]imed out|reset)"
)
# What the engine wraps it in, and says of the lost one; none of them is a cause by itself.
_WRAPPED = re.compile(r"(WorkerGroup|TrainingFailed|RayTask|Controller|DistBackend)Error")


def lost_a_peer(tail: Sequence[str]) -> str:
    """The line in which a worker says that another one is gone, where nothing else failed.

    Where another worker failed by an error of its own, that is the cause.
    """
    found = ""
    for line in tail:
        text = traces.plain(line)
        if _PEER_GONE.search(text):
            found = text
        elif traces.names_an_error(text) and not (_WRAPPED.search(text) or _DIED.search(text)):
            return ""
    return found


def may_be_a_lost_machine(standing: Standing, known: Known, tail: Sequence[str]) -> bool:
    """Whether a driver failed for a worker whose machine may yet be told to be gone."""
    verdict = standing.verdict
    failed = verdict is not None and verdict.cls is VerdictClass.USER
    return failed and _recent_loss(known) is None and bool(lost_a_peer(tail))


def _by_peers(verdict: Verdict, tail: Sequence[str]) -> Verdict | None:
    said = lost_a_peer(tail)
    if not said:
        return None
    if "nccl" in said:
        sentence = f"the workers lost each other (NCCL): {said.strip()[:300]}"
        return replace(verdict, cls=_INFRA, sentence=sentence, remedy=_AGAIN)
    sentence = f"the workers lost each other, and nothing says why: {said.strip()[:300]}"
    return replace(verdict, cls=_UNKNOWN, sentence=sentence, remedy="Read the workers' logs.")


# Errors that are not the driver's own: what happened to it may stand in other lines.
_NOT_OWN = re.compile(r"^(ray|ml_pipelines)\.|CUDA error|NCCL")


def _telling(message: Sequence[str], tail: Sequence[str], trace: Trace | None) -> Sequence[str]:
    """The lines that may tell what happened: an ordinary error ends a driver by itself.

    What went wrong before it was got over, unless it says that it came from that.
    """
    if trace is None or _WRAPPED.search(trace.kind) or _DIED.search(trace.kind):
        return [*message, *tail]
    if _NOT_OWN.search(f"{trace.kind}: {trace.message}"):
        return [*message, *tail]
    return [*message[:1], *trace.before, *trace.lines]


def _by_words(verdict: Verdict, said: Sequence[str]) -> Verdict | None:
    for line in reversed(said):
        text = traces.plain(line)
        for pattern, cls, sentence in _WORDS:
            if pattern.search(text):
                return replace(
                    verdict,
                    cls=cls,
                    sentence=f"{sentence}: {text.strip()[:300]}",
                    remedy=_REMEDIES[cls],
                )
    return None


def _by_trace(verdict: Verdict, trace: Trace | None) -> Verdict | None:
    if trace is None:
        return None
    module, _, name = trace.kind.rpartition(".")
    sentence = f"the driver failed: {trace.sentence}"
    if module == "ml_pipelines.errors" and name in _OURS:
        cls = _OURS[name]
        remedy = _AGAIN if cls is _INFRA else "Correct what it names."
        return replace(verdict, cls=cls, sentence=sentence, remedy=remedy)
    if _DIED.search(trace.kind):
        return replace(verdict, cls=_UNKNOWN, sentence=sentence, remedy="Read the workers' logs.")
    return replace(verdict, sentence=sentence)


_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}


def _by_exit_code(verdict: Verdict, tail: Sequence[str]) -> Verdict:
    code = verdict.exit_code
    if code is None:
        return verdict
    signal = -code if code < 0 else code - 128
    if signal == 9:
        sentence = (
            "the driver was killed (SIGKILL), and nothing says by whom: most often out of memory"
        )
        return replace(verdict, cls=_UNKNOWN, sentence=sentence, remedy=_MORE_MEMORY)
    if signal == 15:
        sentence = "the driver was told to end (SIGTERM); nothing says by whom"
        return replace(verdict, cls=_UNKNOWN, sentence=sentence)
    if signal in _SIGNALS:
        return replace(verdict, sentence=f"the driver crashed ({_SIGNALS[signal]})")
    if code in {126, 127}:
        said = f": {traces.plain(tail[-1]).strip()[:300]}" if tail else ""
        what = "can't be found" if code == 127 else "can't be executed"
        sentence = f"the entrypoint {what}{said}"
        return replace(verdict, cls=_CONFIG, sentence=sentence, remedy=_REMEDIES[_CONFIG])
    return verdict
