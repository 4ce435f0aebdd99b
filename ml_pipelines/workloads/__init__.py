"""What runs on Ray: one folder a model, data sets, and how a job reports."""
