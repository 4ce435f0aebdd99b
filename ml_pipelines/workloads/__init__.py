"""What runs on Ray: one folder a model, the data sets, and how a workload reports."""
