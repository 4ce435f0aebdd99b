"""The Ray resource: an asset runs a job in three lines, and leaves nothing behind.

    outcome = ray.run(context, module="ml_pipelines.workloads.ads_ranking.train",
                      cluster=config.cluster(), params=config.params(day))
    return dg.MaterializeResult(metadata=outcome.metadata(...))

Any exit leads to adopt-or-delete. A run that was *cancelled* cancels its job first thing; a step
process that was only *cut off* (its run is still STARTED) leaves the job to the run's automatic
retry, and what no run will claim any more the keeper removes.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import dagster as dg
from pydantic import Field

from ml_pipelines import settings
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import (
    BackendError,
    BackendUnavailable,
    InvalidInput,
    JournalError,
    MlPipelinesError,
    NotFound,
    Refused,
    StorageError,
    StorageUnavailable,
)
from ml_pipelines.job.verdict import Verdict
from ml_pipelines.orchestration.config import in_launchpad_words
from ml_pipelines.orchestration.control import JobControl, PlatformControl
from ml_pipelines.orchestration.identity import (
    WILL_RETRY_TAG,
    StepIdentity,
    identify,
)
from ml_pipelines.orchestration.translate import (
    OBSERVATION_INTERVAL_S,
    StepSink,
    Translator,
    failure_of,
    failure_of_end,
    succeeded,
)

if TYPE_CHECKING:
    from ml_pipelines.spec.cluster import ClusterSpec
    from ml_pipelines.spec.job import JobSpec, Limits

OWNER_TAG, TEAM_TAG, EXPERIMENT_TAG = "owner", "team", "experiment"
# How long a run that goes on with an earlier one's job waits for storage or cluster to come back.
AWAY_PATIENCE_S = 600.0
AWAY_AGAIN_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job that succeeded left.

    `result` is what the workload committed, `entry` the number of its journal entry (promotions
    name it); `durations` holds seconds by part: "queue", "provisioning", "run", "drain".
    """

    run_key: str
    result: Mapping[str, Any]
    verdict: Verdict
    entry: int | None = None
    durations: Mapping[str, float] = field(default_factory=dict)
    log_url: str = ""

    def metadata(self) -> dict[str, Any]:
        """Materialization metadata that every Ray asset shows."""
        shown: dict[str, Any] = {
            f"seconds {part}": round(float(s), 3) for part, s in self.durations.items()
        }
        shown["job"] = self.run_key
        if self.entry is not None:
            shown["result entry"] = self.entry
        if self.log_url:
            shown["log"] = dg.MetadataValue.url(self.log_url)
        if self.verdict.warnings:
            shown["warnings"] = dg.MetadataValue.md("\n".join(self.verdict.warnings))
        return shown


class Exit(Enum):
    """What becomes of the job when its step ends early."""

    CANCEL = "cancel"
    LEAVE = "leave"


class RayJobs(dg.ConfigurableResource[Any]):
    """Runs Ray jobs for assets: submits, follows, cancels."""

    observation_interval_s: float = Field(
        default=OBSERVATION_INTERVAL_S,
        ge=1,
        le=3600,
        description="Least time between two plotted points, 1 to 3600 s.",
    )

    # Whether a step process that is stopped while its run isn't leaves the job to the run's
    # automatic retry. No config: it follows from how runs are started, not from who starts one.
    leave_when_cut_off: ClassVar[bool] = True

    @contextmanager
    def connect(self) -> Iterator[JobControl]:
        """The seam: tests give another control."""
        from ml_pipelines import lifecycle

        with lifecycle.open_platform(settings.load()) as platform:
            yield PlatformControl(platform)

    def image(self, pool: str) -> str:
        """The image of a pool, to be recorded with what it made. Raises InvalidInput."""
        from ml_pipelines.spec.pools import load_pools

        pools = load_pools(settings.load().pools)
        return pools.get(pool, "config.pool").image or pools.image

    def check(self, clusters: Mapping[str, ClusterSpec]) -> None:
        """Refuse clusters, each under the name of its asset, that no job could have.

        Raises DoesNotFit in the Launchpad's words; nothing is created.
        """
        with self.connect() as control:
            for name, cluster in clusters.items():
                try:
                    control.check(cluster)
                except InvalidInput as error:
                    raise in_launchpad_words(error, root=name) from None

    def run(
        self,
        context: dg.AssetExecutionContext,
        *,
        module: str,
        cluster: ClusterSpec,
        params: Mapping[str, Any],
        limits: Limits | None = None,
        what: str = "",
    ) -> JobOutcome:
        """Run `python -m module` on a Ray cluster of its own, and wait for its result.

        `params` must be plain JSON; the workload reads them from the journal. `what` tells
        several jobs of one step apart. Raises dg.Failure (never retried) with verdict, evidence,
        last lines and remedy; lets interrupts through once the job is cared for.
        """
        me = identify(context, what=what)
        try:
            with ExitStack() as connection:
                control = patiently(
                    lambda: connection.enter_context(self.connect()), begun=me.retried
                )
                spec = _spec(me, context, module, cluster, limits, params)
                return self._follow(context, control, spec, me)
        except InvalidInput as error:
            raise failure_of(in_launchpad_words(error)) from error
        except MlPipelinesError as error:
            raise failure_of(error) from error

    def _follow(
        self,
        context: dg.AssetExecutionContext,
        control: JobControl,
        spec: JobSpec,
        me: StepIdentity,
    ) -> JobOutcome:
        translator = Translator(
            StepSink(context), sys.stdout, control.clock, interval_s=self.observation_interval_s
        )
        try:
            job = patiently(lambda: control.submit(spec, me), begun=me.retried)
            with closing(control.follow(job)) as events:
                for event in events:
                    translator.tell(event)
        except BaseException as error:
            if self._on_exit(context, error) is Exit.CANCEL:
                _cancel(control, me.run_key, reason=_reason(error), by=_by(context))
            raise
        end = translator.ended
        if end is None:
            raise RuntimeError(f"the events of job {me.run_key} ended without its end")
        if not succeeded(end):
            raise failure_of_end(end)
        return JobOutcome(
            run_key=me.run_key,
            result=end.result,
            verdict=end.verdict,
            entry=control.result_entry(me.run_key),
            durations=end.durations,
            log_url=end.log_url,
        )

    def _on_exit(self, context: dg.AssetExecutionContext, error: BaseException) -> Exit:
        try:
            run = context.instance.get_run_by_id(context.run.run_id)
        except Exception:  # noqa: BLE001 - whatever the database says, unseen is not cancelled
            run = None
        if run is None:
            return on_exit(error, status=None, will_retry=False, leave=self.leave_when_cut_off)
        return on_exit(
            error,
            status=run.status,
            will_retry=run.tags.get(WILL_RETRY_TAG) == "true",
            leave=self.leave_when_cut_off,
        )


def patiently(ask: Callable[[], T], *, begun: bool, clock: Clock | None = None) -> T:
    """What `ask` returns. A job that was begun is not given up while storage or cluster is away.

    A run that begins one is refused at once, with BackendUnavailable or StorageUnavailable.
    """
    clock = clock or SystemClock()
    until = clock.monotonic() + (AWAY_PATIENCE_S if begun else 0.0)
    while True:
        try:
            return ask()
        except (StorageUnavailable, BackendUnavailable) as error:
            if clock.monotonic() >= until:
                raise
            sys.stdout.write(f"[ml_pipelines] trying again in {AWAY_AGAIN_S:.0f} s: {error}\n")
            clock.sleep(AWAY_AGAIN_S)


def _spec(
    me: StepIdentity,
    context: dg.AssetExecutionContext,
    module: str,
    cluster: ClusterSpec,
    limits: Limits | None,
    params: Mapping[str, Any],
) -> JobSpec:
    from ml_pipelines.spec.job import JobSpec, Limits
    from ml_pipelines.spec.validate import parse

    config = settings.load()
    return parse(
        JobSpec,
        {
            "name": me.name,
            "entrypoint": ("python", "-m", module),
            "cluster": cluster,
            "limits": limits or Limits(),
            "params": dict(params),
            "owes_result": True,
            # A run's own tags first: in a cluster all runs have one account and environment.
            "owner": context.run.tags.get(OWNER_TAG) or config.owner,
            "team": context.run.tags.get(TEAM_TAG) or config.team,
            "experiment": context.run.tags.get(EXPERIMENT_TAG, ""),
        },
    )


def _cancel(control: JobControl, run_key: str, *, reason: str, by: str) -> None:
    """Cancel; a problem with that is told and never hides what ended the step."""
    try:
        with undisturbed():
            control.cancel(run_key, reason=reason, by=by)
    except NotFound:
        return  # the step ended before the job was born
    except MlPipelinesError as problem:
        sys.stdout.write(f"[ml_pipelines] job {run_key} could not be cancelled: {problem}\n")


def _reason(error: BaseException) -> str:
    if isinstance(error, Exception):
        return f"the step failed: {error!r}"[:500]
    return "the run was stopped"


def _by(context: dg.AssetExecutionContext) -> str:
    return f"dagster run {context.run.run_id}"


class UnretriedRayJobs(RayJobs):
    """For runs that no daemon retries: whatever stops the step cancels its job."""

    leave_when_cut_off: ClassVar[bool] = False


def on_exit(
    error: BaseException, *, status: dg.DagsterRunStatus | None, will_retry: bool, leave: bool
) -> Exit:
    """What becomes of the job when `error` ends its step; pure.

    `status` is the run's in storage now, None when it can't be read. A person's stop has changed
    it (CANCELING, CANCELED, FAILURE after a run's time limit); an eviction has not.
    """
    if isinstance(error, (Refused, InvalidInput)):
        return Exit.LEAVE  # nothing of ours exists, or it is somebody else's
    if isinstance(error, JournalError):
        return Exit.LEAVE  # another loop has taken the job over, or storage must tell first
    if isinstance(error, (StorageError, BackendError)):
        return Exit.LEAVE if leave else Exit.CANCEL  # never killed because we can't see it
    if isinstance(error, Exception):
        return Exit.CANCEL  # the step has failed for good: nobody will claim the job
    if not leave:
        return Exit.CANCEL
    cut_off = status is None or status is dg.DagsterRunStatus.STARTED
    return Exit.LEAVE if cut_off or will_retry else Exit.CANCEL


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C, or the SIGTERM that follows one, doesn't cut a clean-up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, _wait) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(_number: int, _frame: object) -> None:
    sys.stderr.write("Stopping the job already; at most 30 s.\n")
