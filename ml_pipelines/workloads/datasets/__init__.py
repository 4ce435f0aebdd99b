"""Where impressions come from: one module a source, all of one schema."""
