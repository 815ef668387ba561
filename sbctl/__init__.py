"""sbctl: run large language models on your own machines, by plan and apply."""

__version__ = "0.1.0"
