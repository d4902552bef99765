"""Compares pinned packages with the list of known vulnerabilities, and says what was compared and what was not.

``pip-audit`` passes over packages that its service does not know, and succeeds. Behind a mirror of the package index,
or without a network, these are all of them: that would look like a clean result.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_COMMAND = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json", "--requirement"]


def main(arguments: list[str]) -> int:
    """Audit a file of pinned requirements; with ``--tools``, name the packages that this takes."""
    if arguments == ["--tools"]:
        print(*tools(Path("pyproject.toml").read_text()))
        return 0
    (pinned,) = arguments
    ran = subprocess.run(
        [sys.executable, "-m", "pip_audit", *_COMMAND, pinned], stdout=subprocess.PIPE, text=True
    )
    try:
        packages = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"The audit did not take place: pip-audit ended with status {ran.returncode}, see above.")
        return 1
    lines, failed = told(packages)
    print("\n".join(lines))
    return int(failed)


def tools(text: str) -> list[str]:
    """Return the requirements of the extra ``audit``; a Python without a reader of TOML must do.

    >>> tools('audit = [\\n    "pip-audit>=2.7,<3",\\n]\\ndev = ["mypy"]')
    ['pip-audit>=2.7,<3']
    """
    found = re.search(r"^audit = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert found is not None, "pyproject.toml has no extra of that name"
    return re.findall(r'"([^"]+)"', found[1])


def told(packages: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Return what to say of an audit, and whether it failed.

    >>> told([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}])
    (['NOT AUDITED: b: not found', '1 packages audited, 1 not; 0 known vulnerabilities.'], True)
    """
    skipped = [each for each in packages if "skip_reason" in each]
    audited = [each for each in packages if "skip_reason" not in each]
    found = [(each, vulnerability) for each in audited for vulnerability in each["vulns"]]
    lines = [
        f"{each['name']} {each['version']}: {known['id']}, mended in {', '.join(known['fix_versions']) or 'none'}"
        for each, known in found
    ]
    if packages and not audited:
        lines.append(
            "NOTHING WAS AUDITED: the service that knows of vulnerabilities (pypi.org) could not be asked about any "
            "package. Run this where it can be reached; until then nobody knows."
        )
    else:
        lines += [f"NOT AUDITED: {each['name']}: {each['skip_reason']}" for each in skipped]
    lines.append(
        f"{len(audited):,} packages audited, {len(skipped):,} not; {len(found):,} known vulnerabilities."
    )
    return lines, bool(found or skipped)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
