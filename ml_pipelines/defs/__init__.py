"""The models of this code location, one folder each."""
