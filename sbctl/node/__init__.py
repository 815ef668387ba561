"""The typed node interface: what may be asked of a host once `sbctl-runtime node --stdio` runs there, and what it answers."""
