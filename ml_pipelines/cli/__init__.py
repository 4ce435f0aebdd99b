"""The command `mlp`: jobs, data and the machine, over the same loop as Dagster."""
