"""Fetches the libraries of the page from the npm registry: `python -m tools.vendor`.

They lie in the repository and in the wheel, so that the page loads nothing from elsewhere. `vendor.json` next to them
says of each file where it is from and its SHA-256, which a test verifies. `sbom.cdx.json` says the same of those in the
wheel to scanners, and is part of it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools import ROOT

PAGE: Final = ROOT / "airflow_provider_pgqueue" / "web" / "vendor"
TESTS: Final = ROOT / "tests" / "web" / "vendor"
SBOM: Final = ROOT / "tools" / "sbom.cdx.json"


@dataclass(frozen=True)
class Library:
    """A package of the registry, and its files that are kept, by the name under which they are kept."""

    name: str
    version: str
    licence: str
    files: dict[str, str]


LIBRARIES: Final = {
    PAGE: (
        Library(
            "htmx.org", "4.0.1", "0BSD", {"htmx.js": "package/dist/htmx.min.js", "htmx.LICENSE": "package/LICENSE"}
        ),
        Library(
            "uplot",
            "1.6.32",
            "MIT",
            {
                "uplot.js": "package/dist/uPlot.iife.min.js",
                "uplot.css": "package/dist/uPlot.min.css",
                "uplot.LICENSE": "package/LICENSE",
            },
        ),
    ),
    TESTS: (
        Library("axe-core", "4.14.1", "MPL-2.0", {"axe.js": "package/axe.min.js", "axe.LICENSE": "package/LICENSE"}),
    ),
}


def main() -> None:
    """Fetch every library anew and write down what came."""
    for folder, libraries in LIBRARIES.items():
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        known = [_fetch(library, folder) for library in libraries]
        (folder / "vendor.json").write_text(json.dumps(known, indent=2) + "\n")
    SBOM.write_text(json.dumps(sbom(), indent=2) + "\n")


def sbom() -> dict[str, Any]:
    """Return what the wheel contains of others, in the form of CycloneDX; its dependencies are in its metadata."""
    known = json.loads((PAGE / "vendor.json").read_text())
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": "airflow-provider-pgqueue"}},
        "components": [_component(one) for one in known],
    }


def _component(known: dict[str, Any]) -> dict[str, Any]:
    name, _, version = known["package"].partition("@")
    purl = f"pkg:npm/{known['package']}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "licenses": [{"license": {"id": known["licence"]}}],
        "purl": purl,
        "components": [
            {"type": "file", "name": file, "hashes": [{"alg": "SHA-256", "content": sum_}]}
            for file, sum_ in known["sha256"].items()
        ],
    }


def _fetch(library: Library, folder: Path) -> dict[str, Any]:
    package = f"{library.name}@{library.version}"
    with tempfile.TemporaryDirectory() as temporary:
        packed = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=temporary, check=True, capture_output=True, text=True
        )
        with tarfile.open(Path(temporary) / packed.stdout.split()[-1]) as archive:
            bodies = {name: _member(archive, member) for name, member in library.files.items()}
    for name, body in bodies.items():
        (folder / name).write_bytes(body)
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
    return {"package": package, "licence": library.licence, "sha256": sums}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise FileNotFoundError(name)
    # Some say where their source map is, which is not kept.
    lines = [line for line in file.read().splitlines(keepends=True) if not line.startswith(b"//# sourceMappingURL=")]
    return b"".join(lines)


if __name__ == "__main__":
    main()
