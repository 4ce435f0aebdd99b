"""Training: repeatable, resumed as if never interrupted, the same by any number of workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from ml_pipelines.errors import StorageUnavailable
from ml_pipelines.storage import Store, open_store
from ml_pipelines.workloads.ads_ranking.config import Outcome, Task, TrainConfig
from ml_pipelines.workloads.ads_ranking.loop import slowing, train
from ml_pipelines.workloads.checkpoint import Folder, Saved
from ml_pipelines_tests.ads_job import day, fill

CONFIG = TrainConfig(
    day=day(2), epochs=2, batch_size=1024, embedding_dim=4, hash_buckets=5_003, checkpoint_steps=3
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads of torch would only wait for each other on work as small as this."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    """Two days to learn from: 4 steps an epoch, 8 in all, checkpoints after 3 and 6."""
    lake = fill(tmp_path_factory.mktemp("lake"), days=2, rows=2_000)
    urls = [
        url
        for each in lake.days("features_ads_ranking")
        for url in lake.partition("features_ads_ranking", each).files
    ]
    return Task(config=CONFIG, urls=tuple(urls), base_rate=0.07, prefix="whole/")


class Told:
    """What a training tells while it runs."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[dict[str, float]] = []
        self.said: list[str] = []
        self.checkpoints: list[tuple[int, Saved]] = []

    def metric(self, step: int, **values: float) -> None:
        self.steps.append(step)
        self.values.append(values)

    def committed(self, saved: Saved, step: int) -> None:
        self.checkpoints.append((step, saved))


def run(task: Task, store: Store) -> tuple[Outcome, Told]:
    """Train without Ray."""
    told = Told()
    outcome = train(task, store, metric=told.metric, say=told.said.append, committed=told.committed)
    return outcome, told


def weights(store: Store, saved: Saved) -> tuple[bytes, bytes]:
    """Everything that a model is."""
    folder = Folder(store, saved)
    return folder.rows(0, CONFIG.hash_buckets, 4).tobytes(), folder.dense()


@pytest.fixture
def store(tmp_path) -> Store:
    """Run storage."""
    return open_store(f"file://{tmp_path}/runs")


def test_the_same_inputs_give_the_same_model(task, store):
    """Two trainings give the same bytes, and another seed gives others."""
    first, told = run(task, store)
    second, _ = run(replace(task, prefix="again/"), store)
    other, _ = run(replace(task, prefix="other/", config=replace(CONFIG, seed=1)), store)
    assert weights(store, first.model) == weights(store, second.model)
    assert Folder(store, first.model).version == Folder(store, second.model).version
    assert Folder(store, first.model).version != Folder(store, other.model).version
    assert [step for step, _ in told.checkpoints] == [3, 6]
    assert (first.steps, first.resumed_from) == (8, None)


@pytest.mark.parametrize("step", [3, 6])
def test_resuming_equals_never_having_stopped(task, store, step):
    """Case H2: after step N comes N + 1, with the weights of an undisturbed training."""
    whole, told = run(task, store)
    saved = dict(told.checkpoints)[step]
    resumed, told = run(replace(task, prefix="resumed/", resume=(saved,)), store)
    assert resumed.resumed_from == step
    assert min(told.steps) > step
    assert told.steps == sorted(set(told.steps))
    assert weights(store, resumed.model) == weights(store, whole.model)


def test_a_corrupt_checkpoint_is_skipped_for_the_one_before(task, store):
    """Case H1: the newest checkpoint lost a byte, so the older one is used, and it is said."""
    whole, told = run(task, store)
    (_, older), (_, newest) = told.checkpoints
    name = next(file.name for file in Folder(store, newest).files if file.last)
    store.put(f"{newest.prefix}/{name}", store.get(f"{newest.prefix}/{name}")[:-1] + b"x")
    resumed, told = run(replace(task, prefix="resumed/", resume=(newest, older)), store)
    assert resumed.resumed_from == 3
    assert any("corrupt" in line for line in told.said)
    assert weights(store, resumed.model) == weights(store, whole.model)


def test_nothing_to_resume_starts_anew(task, store):
    """Checkpoints that are all gone leave a training that begins at the beginning."""
    outcome, told = run(replace(task, resume=(Saved("gone", ""),)), store)
    assert outcome.resumed_from is None
    assert any("is gone" in line for line in told.said)


def test_a_checkpoint_of_other_data_is_not_taken_up(task, store):
    """Where the window's data changed since, training begins anew: one model, one set of data."""
    _, told = run(replace(task, provenance={"data_versions": {"d": "1"}}), store)
    (_, saved), _ = told.checkpoints
    changed = replace(task, provenance={"data_versions": {"d": "2"}}, resume=(saved,))
    outcome, told = run(changed, store)
    assert outcome.resumed_from is None
    assert any("not those of the window now" in line for line in told.said)


class AwayAtFirst(Store):
    """Run storage that takes no checkpoint, but does take the model."""

    def put(self, path, data):
        if "checkpoints" in path:
            raise StorageUnavailable("away")
        super().put(path, data)


def test_storage_away_costs_a_checkpoint_not_the_training(task, store):
    """While checkpoints can't be written the training goes on to the same model."""
    whole, _ = run(task, store)
    outcome, told = run(replace(task, prefix="away/"), AwayAtFirst(store.url))
    assert told.checkpoints == []
    assert weights(store, outcome.model) == weights(store, whole.model)


def test_progress_is_told_for_each_epoch(task, store):
    """Loss, AUC and samples/s come with strictly increasing steps, an epoch's end included."""
    outcome, told = run(task, store)
    assert {"loss", "auc", "samples_per_s"} <= set(told.values[0])
    assert {4, 8} <= set(told.steps)
    assert outcome.curve[-1]["step"] == 8
    assert outcome.loss == told.values[-1]["loss"]


def test_learning_rates_slow_down_evenly():
    """From the full rate at the first step to a fiftieth at the last."""
    assert slowing(0, 100) == 1
    assert slowing(50, 100) == 0.5
    assert slowing(100, 100) == 0.02


def worker(rank: int, world: int, folder: str, task: Task) -> None:
    """One of several gloo workers."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{world}", rank=rank, world_size=world
    )
    outcome, told = run(task, open_store(f"file://{folder}/runs"))
    if rank == 0:
        torch.save((outcome, told), f"{folder}/{world}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(300)  # two processes import torch: minutes on a machine that is busy
def test_any_number_of_workers_takes_up_a_checkpoint(task, store, tmp_path):
    """Two workers' checkpoint is resumed by one, and ends where two end, within rounding."""
    spawn(worker, (2, str(tmp_path), replace(task, prefix="two/")), nprocs=2)
    two, told = torch.load(f"{tmp_path}/2.pt", weights_only=False)
    one, _ = run(task, store)
    resumed, _ = run(replace(task, prefix="r/", resume=(told.checkpoints[0][1],)), store)
    assert two.table_bytes * 2 == pytest.approx(one.table_bytes, rel=0.01)
    assert resumed.resumed_from == 3
    for other in (two, resumed):
        assert other.loss == pytest.approx(one.loss, abs=1e-4)
        ours = Folder(store, one.model).rows(0, CONFIG.hash_buckets, 4)
        theirs = Folder(store, other.model).rows(0, CONFIG.hash_buckets, 4)
        assert abs(ours - theirs).max() < 1e-3
