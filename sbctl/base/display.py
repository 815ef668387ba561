"""Foreign text made safe for a terminal, and numbers as people read them."""

from __future__ import annotations

import unicodedata

__all__ = ["display_safe", "format_bytes", "format_duration_s", "plural"]

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def display_safe(text: str, *, max_chars: int = 2000, keep_newlines: bool = False) -> str:
    """Control, format and bidirectional characters become `\\xNN` or `\\u{NNNN}`; long text is cut with a count."""
    cut = len(text) - max_chars
    parts = []
    for char in text[:max_chars]:
        if char == "\n" and keep_newlines:
            parts.append(char)
        elif unicodedata.category(char) in _UNSAFE_CATEGORIES:
            code = ord(char)
            parts.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:04x}}}")
        else:
            parts.append(char)
    if cut > 0:
        parts.append(f"… ({cut} more characters)")
    return "".join(parts)


def format_bytes(count: int) -> str:
    """`0 B`, `93.8 MiB`, `4.7 GiB`: binary units, one decimal from KiB up."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_duration_s(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 m 05 s`, `2 h 10 m`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 host`, `3 hosts`."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"
