"""The Dagster side of the loop: resource, configs, translation, keeper."""
