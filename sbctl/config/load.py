"""sb.yml to one checked value: read, put variables in, validate, merge per host, compile. Nothing here touches a host or the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.config.compile import Compilation
from sbctl.config.compiled import CompiledConfig
from sbctl.config.diagnose import Checked, Report, report_expansion, validated
from sbctl.config.document import Document
from sbctl.config.file_shape import FileShape
from sbctl.config.fleet import FleetModel
from sbctl.config.fleet_loading import load_fleet
from sbctl.config.including import read_config
from sbctl.config.interpolate import Variables, expanded
from sbctl.config.layers import Layer, View
from sbctl.config.legacy_document import without_serve
from sbctl.config.planes import foreign_names, without_foreign
from sbctl.config.served import report_foreign

__all__ = ["load", "load_document"]

_BLOCKS = ("fleet", "proxy", "origins")


def load(
    path: FilePath,
    *,
    environ: Mapping[str, str],
    keyed: Callable[[bytes], str] | None = None,
    require_pins: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> CompiledConfig:
    """Read and compile sb.yml.

    `environ` feeds `${…}` and `env:`; `keyed` turns a secret into the fingerprint that plans keep (16 hex), None leaves them out.
    `clock` judges certificates. Without `require_pins` a host may lack a pinned key: for who lists hosts or pins them, never for who connects.
    Raises InputError `file.*`, ConfigError with every finding of the file, RefusedError `config.open_endpoint`.
    """
    return load_document(read_config(path), environ=environ, keyed=keyed, require_pins=require_pins, clock=clock)


def load_document(
    document: Document,
    *,
    environ: Mapping[str, str],
    keyed: Callable[[bytes], str] | None = None,
    require_pins: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> CompiledConfig:
    """`load` for a document that was read already."""
    report = Report()
    report.diagnostics.extend(document.findings)
    if not document.complete or not isinstance(document.value, dict):
        if document.complete and not document.findings:
            what = "the file is empty" if document.value is None else "the file must be a map of blocks"
            notes = ("sbctl init writes a starter",)
            report.add("config.not_a_map", what, document.span_at(0, 0), notes=notes)
        report.raise_errors()
    document = without_serve(report, document)
    shape = _top_level(report, document, environ)
    fleet = (
        load_fleet(report, document, environ)
        if "fleet" in document.value
        else Checked(FleetModel.model_construct(), whole=True)
    )
    return Compilation(document, report, environ, keyed, require_pins, clock).run(shape, fleet)


def _top_level(report: Report, document: Document, environ: Mapping[str, str]) -> FileShape:
    view = View(document, (Layer((), document.value),))
    value, found = without_foreign({key: child for key, child in document.value.items() if key not in _BLOCKS}, ())
    raw_fleet = document.value.get("fleet")
    written = raw_fleet.get("accept_unenforced") if isinstance(raw_fleet, dict) else None
    accepted = tuple(each for each in written if isinstance(each, str)) if isinstance(written, list) else ()
    report_foreign(report, view, "", [each for each in found if each.path[0] in foreign_names("")], accepted)
    expansion = expanded({key: child for key, child in value.items() if key != "include"}, Variables((environ,)))
    if "include" in value:
        # Followed as it stands, before any variable was known.
        expansion.value["include"] = value["include"]
    report_expansion(report, view, expansion.problems)
    broken = [path for path, _, _ in expansion.problems]
    checked = validated(report, FileShape, expansion.value, view, texts=expansion.texts, broken=broken)
    shape = checked.model or FileShape()
    if shape.required_sbctl is not None:
        _check_version(report, shape.required_sbctl, view)
    return shape


def _check_version(report: Report, required: str, view: View) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    span = view.value_span(("required_sbctl",))
    try:
        specifiers = SpecifierSet(required)
    except InvalidSpecifier:
        report.add("config.bad_value", '"required_sbctl" must be a version range such as ">=0.1,<1"', span)
        return
    if not specifiers.contains(__version__, prereleases=True):
        message = f"this file needs sbctl {required}, and this is sbctl {__version__}"
        report.add("config.unsupported_version", message, span, notes=("install a version that fits",))
