"""Placement: which node runs which replica, and how a deployment gets from one generation to the next. Pure: no I/O, and time is an argument."""
