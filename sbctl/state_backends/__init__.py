"""The shared state: where its document is kept (`http`, `postgres`), who may write it, and how a checkout stays in step with it."""
