"""What a runtime does in a cluster: the shared store, the lease of the one that decides."""
