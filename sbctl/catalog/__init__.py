"""Which models exist, where their bytes are and what they are called: Catalog v2."""
