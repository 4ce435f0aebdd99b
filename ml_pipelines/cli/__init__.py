"""The command `mlp`: jobs, data, the machine; over the same loop as Dagster."""
