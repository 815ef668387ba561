"""Weights: identity by content, sources, download, and the content-addressed cache on each host."""
