"""Engines: what a build accepts, the argv for it, the environment. Starts nothing."""
