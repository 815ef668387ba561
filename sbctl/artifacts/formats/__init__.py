"""What weight files are, by what they hold: bounded readers of headers. Nothing here loads weights, and no name decides anything."""
