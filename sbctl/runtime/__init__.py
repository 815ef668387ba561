"""The daemon on a node, and the node interface. asyncio; imports nothing of the control side."""
