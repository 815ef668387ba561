"""The sb.yml that `sbctl init` writes: one small model on this machine, and the lines one changes first."""

from __future__ import annotations

from typing import Final

__all__ = ["STARTER"]

STARTER: Final = """\
# What runs here. `sbctl plan` shows what would change, `sbctl apply` makes it so, `sbctl explain FIELD` tells what a field means.
required_sbctl: ">=0.1"

proxy:
  http_bind_port: 8080            # the OpenAI-compatible API, on 127.0.0.1 unless bind_address says otherwise
  admin:
    enabled: true                 # status, load and stop; its password is generated on the host
    port: 9090
  model_host:
    engines:
      llama_cpp: {launch: wheel}  # sbctl installs the pinned build; `launch: binary` uses a llama-server that is there
    deployments:
      chat:
        model: smollm2-135m-instruct
        variant: q4_1             # 94 MiB, Apache-2.0
        pull: on_boot
        warm: true                # apply returns when the model has answered
        max_concurrency: 2

origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - name: local
          provider_type: managed_model
          deployment: chat
          models: [smollm2]       # the name that clients ask for
          default_model: smollm2

# More machines: name them here, and each worker runs the deployments whose required_labels it carries.
# fleet:
#   ssh: {user: root, identity_file: ~/.ssh/id_ed25519}
#   hosts:
#     gpu-a: {address: 10.10.0.21, host_key: "SHA256:…", labels: {zone: a}}
"""
