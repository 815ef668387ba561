"""Carrying a plan out: hosts in parallel, a host's steps in order; intent, act, read back, outcome, each durable before the next."""
