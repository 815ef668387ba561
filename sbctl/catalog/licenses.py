"""What licences of weights allow, as far as a table can say: the name, and whether commercial use is free, conditional or excluded.

Identifiers are SPDX's where SPDX has one, in lower case as model cards write them; the others are those that hubs use for the licences
that come with models. A licence that is not in the table is unknown, and unknown is restrictive: somebody must have read it.
This is a reading aid for operators, not legal advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CommercialUse", "License", "license_of"]

CommercialUse = Literal["allowed", "conditional", "excluded", "unknown"]


@dataclass(frozen=True, slots=True)
class License:
    """`id` as the catalog has it; `name` for people; `spdx` is the SPDX identifier or None."""

    id: str
    name: str
    spdx: str | None
    commercial: CommercialUse

    @property
    def restrictive(self) -> bool:
        """Whether a deployment must say that the licence was read: anything but free commercial use."""
        return self.commercial != "allowed"

    @property
    def phrase(self) -> str:
        """One phrase for plans: the identifier and what it means for commercial use."""
        words = {
            "allowed": "commercial use allowed",
            "conditional": "commercial use under conditions",
            "excluded": "no commercial use",
            "unknown": "licence not known to sbctl",
        }
        return f"{self.spdx or self.id or 'no licence'} ({words[self.commercial]})"


_Table = dict[str, tuple[str, str | None]]

_ALLOWED: Final[_Table] = {
    "0bsd": ("BSD Zero Clause License", "0BSD"),
    "afl-3.0": ("Academic Free License 3.0", "AFL-3.0"),
    "agpl-3.0": ("GNU Affero General Public License 3.0", "AGPL-3.0-only"),
    "apache-2.0": ("Apache License 2.0", "Apache-2.0"),
    "artistic-2.0": ("Artistic License 2.0", "Artistic-2.0"),
    "bsd": ("BSD License", None),
    "bsd-2-clause": ("BSD 2-Clause License", "BSD-2-Clause"),
    "bsd-3-clause": ("BSD 3-Clause License", "BSD-3-Clause"),
    "bsl-1.0": ("Boost Software License 1.0", "BSL-1.0"),
    "cc0-1.0": ("Creative Commons Zero 1.0", "CC0-1.0"),
    "cc-by-2.0": ("Creative Commons Attribution 2.0", "CC-BY-2.0"),
    "cc-by-2.5": ("Creative Commons Attribution 2.5", "CC-BY-2.5"),
    "cc-by-3.0": ("Creative Commons Attribution 3.0", "CC-BY-3.0"),
    "cc-by-4.0": ("Creative Commons Attribution 4.0", "CC-BY-4.0"),
    "cc-by-sa-3.0": ("Creative Commons Attribution-ShareAlike 3.0", "CC-BY-SA-3.0"),
    "cc-by-sa-4.0": ("Creative Commons Attribution-ShareAlike 4.0", "CC-BY-SA-4.0"),
    "cdla-permissive-1.0": ("Community Data License Agreement Permissive 1.0", "CDLA-Permissive-1.0"),
    "cdla-permissive-2.0": ("Community Data License Agreement Permissive 2.0", "CDLA-Permissive-2.0"),
    "ecl-2.0": ("Educational Community License 2.0", "ECL-2.0"),
    "epl-1.0": ("Eclipse Public License 1.0", "EPL-1.0"),
    "epl-2.0": ("Eclipse Public License 2.0", "EPL-2.0"),
    "eupl-1.1": ("European Union Public License 1.1", "EUPL-1.1"),
    "eupl-1.2": ("European Union Public License 1.2", "EUPL-1.2"),
    "gpl-2.0": ("GNU General Public License 2.0", "GPL-2.0-only"),
    "gpl-3.0": ("GNU General Public License 3.0", "GPL-3.0-only"),
    "isc": ("ISC License", "ISC"),
    "lgpl-2.1": ("GNU Lesser General Public License 2.1", "LGPL-2.1-only"),
    "lgpl-3.0": ("GNU Lesser General Public License 3.0", "LGPL-3.0-only"),
    "mit": ("MIT License", "MIT"),
    "mpl-2.0": ("Mozilla Public License 2.0", "MPL-2.0"),
    "ms-pl": ("Microsoft Public License", "MS-PL"),
    "ncsa": ("University of Illinois/NCSA License", "NCSA"),
    "osl-3.0": ("Open Software License 3.0", "OSL-3.0"),
    "postgresql": ("PostgreSQL License", "PostgreSQL"),
    "unlicense": ("The Unlicense", "Unlicense"),
    "wtfpl": ("WTFPL", "WTFPL"),
    "zlib": ("zlib License", "Zlib"),
}
_CONDITIONAL: Final[_Table] = {
    "bigcode-openrail-m": ("BigCode OpenRAIL-M", None),
    "bigscience-bloom-rail-1.0": ("BigScience BLOOM RAIL 1.0", None),
    "bigscience-openrail-m": ("BigScience OpenRAIL-M", None),
    "creativeml-openrail-m": ("CreativeML OpenRAIL-M", None),
    "deepseek": ("DeepSeek Model License", None),
    "falcon-llm-license": ("Falcon LLM License", None),
    "gemma": ("Gemma Terms of Use", None),
    "lfm1.0": ("LFM Open License 1.0", None),
    "llama2": ("Llama 2 Community License", None),
    "llama3": ("Llama 3 Community License", None),
    "llama3.1": ("Llama 3.1 Community License", None),
    "llama3.2": ("Llama 3.2 Community License", None),
    "llama3.3": ("Llama 3.3 Community License", None),
    "llama4": ("Llama 4 Community License", None),
    "openrail": ("OpenRAIL", None),
    "openrail++": ("OpenRAIL++", None),
    "qwen": ("Tongyi Qianwen License", None),
    "tongyi-qianwen": ("Tongyi Qianwen License", None),
}
_EXCLUDED: Final[_Table] = {
    "apple-amlr": ("Apple Machine Learning Research License", None),
    "apple-ascl": ("Apple Sample Code License", None),
    "cc-by-nc-2.0": ("Creative Commons Attribution-NonCommercial 2.0", "CC-BY-NC-2.0"),
    "cc-by-nc-3.0": ("Creative Commons Attribution-NonCommercial 3.0", "CC-BY-NC-3.0"),
    "cc-by-nc-4.0": ("Creative Commons Attribution-NonCommercial 4.0", "CC-BY-NC-4.0"),
    "cc-by-nc-nd-3.0": ("Creative Commons Attribution-NonCommercial-NoDerivatives 3.0", "CC-BY-NC-ND-3.0"),
    "cc-by-nc-nd-4.0": ("Creative Commons Attribution-NonCommercial-NoDerivatives 4.0", "CC-BY-NC-ND-4.0"),
    "cc-by-nc-sa-2.0": ("Creative Commons Attribution-NonCommercial-ShareAlike 2.0", "CC-BY-NC-SA-2.0"),
    "cc-by-nc-sa-3.0": ("Creative Commons Attribution-NonCommercial-ShareAlike 3.0", "CC-BY-NC-SA-3.0"),
    "cc-by-nc-sa-4.0": ("Creative Commons Attribution-NonCommercial-ShareAlike 4.0", "CC-BY-NC-SA-4.0"),
    "fair-noncommercial-research-license": ("FAIR Noncommercial Research License", None),
    "intel-research": ("Intel Research License", None),
    "mnpl": ("Mistral AI Non-Production License", None),
    "mrl": ("Mistral AI Research License", None),
    "qwen-research": ("Qwen Research License", None),
}
_BY_USE: Final[tuple[tuple[CommercialUse, _Table], ...]] = (
    ("allowed", _ALLOWED),
    ("conditional", _CONDITIONAL),
    ("excluded", _EXCLUDED),
)


def license_of(text: str) -> License:
    """The licence that a catalog's text names, whatever its case; an expression of several is as restrictive as its strictest."""
    word = text.strip().lower()
    parts = [part for part in word.replace(" and ", "\n").split("\n") if part]
    if len(parts) > 1:
        found = [license_of(part) for part in parts]
        order: tuple[CommercialUse, ...] = ("allowed", "conditional", "unknown", "excluded")
        strictest = max((one.commercial for one in found), key=order.index)
        spdx = " AND ".join(one.spdx or "" for one in found) if all(one.spdx for one in found) else None
        return License(text, " and ".join(one.name for one in found), spdx, strictest)
    for use, table in _BY_USE:
        if word in table:
            name, spdx = table[word]
            return License(text, name, spdx, use)
    return License(text, text or "no licence", None, "unknown")
