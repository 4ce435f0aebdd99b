"""The prepared check on a GPU: says so where there is none; the same steps work on CPUs."""

from __future__ import annotations

import pytest
import torch

from ml_pipelines.workloads.ads_ranking import gpu_check
from ml_pipelines.workloads.ads_ranking.config import TrainConfig


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(capsys):
    """No GPU is told in those words, and is no failure."""
    assert gpu_check.main() == 0
    assert capsys.readouterr().out == "not run: no GPU\n"


@pytest.mark.slow
def test_its_steps_work_on_cpus(tmp_path):
    """What it does on GPUs with NCCL it can do with gloo: train twice and find the same model."""
    config = TrainConfig(day="", embedding_dim=8, hash_buckets=50_021, batch_size=512)
    told = gpu_check.check(tmp_path, gpus=2, cuda=False, config=config, rows=3_000)
    assert told["same_model"]
    assert 0.5 < told["auc"] < told["truth_auc"]
