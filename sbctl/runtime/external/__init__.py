"""Other people's OpenAI-compatible APIs that stand in for a deployment: which key is tried, when one rests, and the asking itself."""
