"""`python -m ml_pipelines.cli`."""

from __future__ import annotations

from ml_pipelines.cli.main import main

main(prog_name="mlp")
