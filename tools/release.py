"""Checks that what a release says is true: `python tools/release.py v1.2.0 owner/repository`, run by the workflow.

Until the first release, addresses end in .example, which belongs to no one, and pip is given the folder of a clone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDRESSES = ("pyproject.toml", "CITATION.cff", "CODE_OF_CONDUCT.md", ".github/CODEOWNERS")


def not_ready(tag: str, repository: str, root: Path = ROOT) -> list[str]:
    """Return what has to be done before ``tag`` can be released from the GitHub repository ``owner/name``."""

    def read(name: str) -> str:
        return (root / name).read_text()

    version = tag.removeprefix("v")
    named = {
        "pyproject.toml": rf'^version = "{re.escape(version)}"$',
        "src/headrace/version.py": rf'^__version__ = "{re.escape(version)}"$',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
        "CHANGELOG.md": rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$",
    }
    missing = [
        f"{name} does not name the version {version}."
        for name, line in named.items()
        if not re.search(line, read(name), re.MULTILINE)
    ]
    missing += [
        f"{name} has an address that ends in .example. Write the real one."
        for name in ADDRESSES
        if re.search(r"[\w.-]+\.example\b", read(name))
    ]
    if f'Source = "https://github.com/{repository}"' not in read("pyproject.toml"):
        missing.append(
            f"Source in pyproject.toml is not https://github.com/{repository}, which releases this."
        )
    if not re.search(r'^DISTRIBUTION = "headrace"$', read("src/headrace/core/door.py"), re.MULTILINE):
        missing.append(
            'DISTRIBUTION in core/install.py is not "headrace": messages would not name the index.'
        )
    if not (root / "tests" / "museum" / f"{version}.tar.xz").exists():
        missing.append(
            f"tests/museum has no outputs of {version}, which later versions are tested with: "
            "python tests/museum/make.py packs them."
        )
    if "not on PyPI yet" in read("README.md"):
        missing.append("README.md says that Headrace is not on PyPI yet.")
    return missing


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found = not_ready(*sys.argv[1:])
    print(*(found or ["Ready."]), sep="\n")
    sys.exit(bool(found))
