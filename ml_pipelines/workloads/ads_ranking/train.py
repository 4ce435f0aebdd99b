"""Train the click model on a window of days, with Ray Train.

    python -m ml_pipelines.workloads.ads_ranking.train           (in a job; see `TrainConfig`)

The window is the `window_days` days before `day`, so that the day itself can judge the model. The
training loop is in `loop`; here is what surrounds it: the driver, and the numbered points where it
touches Ray. The result:

    model_url, version       where the model lies; a hash of its weights
    model_name, day, window  [days that it learned from]
    data_versions            {day: data version}
    rows, clicks             of the window
    loss, auc                progressive, of the last epoch; "NaN" where they don't exist
    samples_per_s, steps, workers, device, table_bytes (of one worker)
    seconds, wall_seconds    of the loop; of everything from the first look at the data
    resumed_from             the step of the checkpoint that it went on from, or null
    curve                    [{"step", "loss", "auc", "samples_per_s"}] of what was reported
    provenance               seed, code, config, data versions, image: also in the model's manifest
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any

from ml_pipelines import settings
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import InvalidData, InvalidInput, StorageError
from ml_pipelines.storage import arrow_filesystem, open_store
from ml_pipelines.workloads import checkpoint
from ml_pipelines.workloads.ads_ranking.config import Outcome, Task, TrainConfig
from ml_pipelines.workloads.ads_ranking.data import LANES
from ml_pipelines.workloads.ads_ranking.window import Window, window_before
from ml_pipelines.workloads.device import (
    a_worker_sees_cuda,
    asked_gpus,
    await_gpus,
    wants_cuda,
)
from ml_pipelines.workloads.joining import join_ray
from ml_pipelines.workloads.params import parse
from ml_pipelines.workloads.report import (
    Committer,
    MetricLines,
    Run,
    Seat,
    code_version,
    driver,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ml_pipelines.journal.record import Journal

PEER_TIMEOUT_S = 120  # a worker that waits so long for another one gives up
KEPT_CHECKPOINTS = 2


def main() -> None:
    """The driver of a training job."""
    with driver() as run:
        config = parse(TrainConfig, run.params)
        window = window_before(run.lake, config.features, config.day, config.window_days)
        if window.missing:
            run.progress(f"training without {', '.join(window.missing)}: no features there")
        run.result(train_job(run, config, window))
        with suppress(StorageError):  # the result stands; retention takes what stays
            for each in run.commits("checkpoint"):
                run.store.delete_prefix(each.path)


def train_job(run: Run, config: TrainConfig, window: Window) -> dict[str, Any]:
    """Train on Ray and tell the result described above."""
    started = time.monotonic()
    clicks = count_clicks(window)
    provenance = {
        "model_name": config.model_name,
        "config": asdict(config),
        "data_versions": window.data_versions,
        "seed": config.seed,
        "code": code_version(),
        "image": config.image,
        "torch": package_version("torch"),
        "run_key": run.run_key,
    }
    resume = tuple(checkpoint.Saved(each.path, each.sha256) for each in run.commits("checkpoint"))
    task = Task(
        config=config,
        urls=window.files,
        base_rate=clicks / window.rows,
        prefix=run.prefix,
        resume=resume,
        provenance=provenance,
    )
    outcome, workers, device = train_on_ray(run, task)
    model = checkpoint.Folder(run.store, outcome.model)
    told = asdict(outcome)
    del told["model"]
    return {
        **{name: _number(value) for name, value in told.items()},
        "curve": [{name: _number(v) for name, v in point.items()} for point in outcome.curve],
        "model_url": run.store.child_url(outcome.model.prefix),
        "version": model.version,
        "model_name": config.model_name,
        "day": config.day,
        "window": sorted(window.data_versions),
        "data_versions": window.data_versions,
        "rows": window.rows,
        "clicks": clicks,
        "workers": workers,
        "device": device,
        "wall_seconds": time.monotonic() - started,
        "provenance": provenance,
    }


def count_clicks(window: Window) -> int:
    """Clicks in the window; InvalidData without any, for there would be nothing to learn."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    clicks = 0
    for url in window.files:
        filesystem, path = arrow_filesystem(url)
        column = pq.read_table(path, filesystem=filesystem, columns=["click"])["click"]
        clicks += pc.sum(column).as_py() or 0
    if not clicks:
        raise InvalidData(
            "window", sorted(window.data_versions), "holds no click", remedy="Widen window_days."
        )
    return int(clicks)


def train_on_ray(
    run: Run, task: Task, *, worker: Callable[[dict[str, Any]], Outcome] | None = None
) -> tuple[Outcome, int, str]:
    """Train with Ray Train; the outcome, the number of worker processes, and the device.

    `worker` is what runs in every worker, `train_worker` unless somebody wants to measure it.
    """
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, UserCallback
    from ray.train.torch import TorchConfig, TorchTrainer

    class CommitCheckpoints(UserCallback):
        """Runs in Ray Train's controller, which acts for the driver under its claim."""

        def __init__(self, committer: Committer) -> None:
            self.committer = committer

        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:  # noqa: ARG002
            reported: dict[str, Any] = metrics[0]
            self.committer.post(lambda journal: commit_checkpoint(journal, run_seat, reported))

    run_seat = run.seat
    join_ray()
    in_cluster = _joined(task.config)
    workers, cuda = processes(task.config, in_cluster, os.environ, sees_cuda=a_worker_sees_cuda)
    task = replace(task, cuda=cuda)
    # 1. Workers: one process a GPU, else as many as asked for, sharing the CPUs that there are.
    cpus = float(os.environ.get("MLP_WORKER_CPUS") or cpu_share(in_cluster.get("CPU", 1), workers))
    resources = {"CPU": cpus, "GPU": 1} if cuda else {"CPU": cpus}
    filesystem, path = arrow_filesystem(run.store.child_url(f"{run.prefix}ray-train"))
    trainer: Any = TorchTrainer(
        worker or train_worker,  # type: ignore[arg-type]  # Ray's annotation knows no return value
        train_loop_config={"task": task, "seat": run_seat},
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=cuda, resources_per_worker=resources
        ),
        # 2. The process group, with a short time-out: a rank that waits for nobody ends in time.
        torch_config=TorchConfig(backend="nccl" if cuda else "gloo", timeout_s=PEER_TIMEOUT_S),
        # 3. Reports of checkpoints come to the controller. A lost worker ends the attempt: whether
        #    there is another one is decided outside, by why it was lost.
        run_config=RunConfig(  # type: ignore[call-arg]  # typed as the one of Ray Train V1
            name="train",
            storage_path=path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=0),
            callbacks=[CommitCheckpoints(Committer(run_seat))],  # type: ignore[list-item]
            logging_config=LoggingConfig(log_level="WARNING"),
        ),
    )
    result = trainer.fit()
    # 4. What rank 0 returned.
    outcome: Outcome = result.return_value
    return outcome, workers, "cuda" if cuda else "cpu"


def _joined(config: TrainConfig) -> Mapping[str, float]:
    """What Ray has, once the GPUs that the backend told of have joined."""
    import ray

    def seen() -> tuple[float, int]:
        gpus = float(ray.cluster_resources().get("GPU", 0.0))  # type: ignore[no-untyped-call]
        nodes: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
        return gpus, len([node for node in nodes if node["Alive"]])

    workers = int(os.environ.get(settings.WORKERS_VARIABLE) or config.workers)
    told = float(os.environ.get(settings.GPUS_VARIABLE) or 0)
    await_gpus(told * workers, seen, SystemClock(), machines=workers + 1)
    found: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


def cpu_share(cpus: float, processes: int) -> float:
    """CPUs that each process may claim: one, or less on machines with more GPUs than CPUs."""
    return min(1.0, max(0.01, int(cpus / processes * 100) / 100))


def processes(
    config: TrainConfig,
    in_cluster: Mapping[str, float],
    environ: Mapping[str, str],
    *,
    sees_cuda: Callable[[], bool] = lambda: True,
) -> tuple[int, bool]:
    """How many worker processes, and whether they use CUDA: one a GPU where there are GPUs.

    The backend may have shrunk the number of workers to the machine (MLP_WORKERS). Where the
    platform allows CPUs, `sees_cuda` says whether Ray's GPUs are real.
    """
    workers = int(environ.get(settings.WORKERS_VARIABLE) or config.workers)
    visible = in_cluster.get("GPU", 0.0)
    asked = asked_gpus(environ, in_cluster=visible, workers=workers)
    cuda = wants_cuda(asked, visible=visible, environ=environ)
    if cuda and environ.get(settings.ALLOW_CPU_VARIABLE) == "1":
        cuda = sees_cuda()
    count = workers * asked if cuda else workers
    if count > LANES:
        raise InvalidInput(
            "params.workers",
            count,
            f"worker processes are more than the {LANES} lanes that a batch is dealt to",
            remedy="Ask for fewer workers or GPUs.",
        )
    return count, cuda


def commit_checkpoint(journal: Journal, seat: Seat, reported: Mapping[str, Any]) -> None:
    """Make a checkpoint count, and remove the one that is now too old."""
    journal.commit(
        seat.claim,
        "checkpoint",
        path=reported["path"],
        sha256=reported["sha256"],
        data={"step": reported["step"]},
    )
    kept = [each for each in journal.read().commits if each.what == "checkpoint"]
    if len(kept) > KEPT_CHECKPOINTS:
        open_store(seat.runs).delete_prefix(kept[-KEPT_CHECKPOINTS - 1].path)


def train_worker(given: dict[str, Any]) -> Outcome:
    """What Ray Train runs in every worker."""
    import ray.train

    from ml_pipelines.workloads.ads_ranking.loop import train

    seat: Seat = given["seat"]
    lines = MetricLines(seat.claim)

    def committed(saved: checkpoint.Saved, step: int) -> None:
        # Waits for all workers and the controller, so only for checkpoints.
        ray.train.report({"path": saved.prefix, "sha256": saved.sha256, "step": step})

    store = open_store(seat.runs)
    outcome = train(given["task"], store, metric=lines, say=print, committed=committed)
    lines.close()
    return outcome


def _number(value: Any) -> Any:
    """Plain JSON has no NaN."""
    return "NaN" if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
