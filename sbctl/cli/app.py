"""The command tree. Commands import what they need when they run, so that `--help` and completion stay quick."""

from __future__ import annotations

import typer

from sbctl.cli.commands import (
    admin,
    applying,
    auditing,
    bundles,
    catalog,
    cluster,
    configuration,
    hosts,
    inspecting,
    keys,
    models,
    packing,
    planning,
    replicas,
    running,
    state,
    watching,
)

__all__ = ["app"]

app = typer.Typer(
    name="sbctl",
    help="Run large language models on your own machines: sb.yml says what, plan shows it, apply makes it so.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (configuration, planning, applying, inspecting, watching, running):
    group.register(app)
app.add_typer(state.app, name="state", help="The recorded truth: look, repair, share.")
app.add_typer(hosts.app, name="host", help="The machines of the fleet, one by one.")
app.add_typer(
    cluster.app, name="cluster", help="Hosts that are one service: how it is, who leaves it, and who has an identity."
)
replicas.register(models.app)
app.add_typer(models.app, name="models", help="Weights in the catalog and in caches, and the replicas that serve them.")
app.add_typer(admin.app, name="admin", help="Accounts of the admin API.")
app.add_typer(auditing.app, name="audit", help="Who changed what on a host.")
app.add_typer(keys.app, name="key", help="Who may sign what should run.")
app.add_typer(catalog.app, name="catalog", help="An operator's own models, kept true to where they come from.")
app.add_typer(packing.app, name="pack", help="Everything a closed site needs, in one file.")
app.add_typer(bundles.app, name="bundle", help="Signed desired state, as hosts get it.")
