"""What became of a job: phases, verdicts, attempts and events, all pure."""
