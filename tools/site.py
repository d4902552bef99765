"""A hook of MkDocs: lists the decisions in the navigation, and sees to it that pages ask nobody else for anything.

``LATER`` has pages that the navigation has a place for although nobody has written them yet.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

LATER = {"cluster.md", "command-line.md", "report.md"}


_FETCHED = re.compile(r'<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')


def on_config(config: Any) -> Any:
    """Complete the navigation."""
    docs = Path(config["docs_dir"])
    config["nav"] = _complete(config["nav"], docs)
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leave out the list of neighbours of a page that has none."""
    if page.parent is None:
        page.meta["hide"] = ["navigation"]
    return markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would have a browser fetch something from elsewhere."""
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch something from elsewhere: {found[0]}")
    return output


def _complete(nav: list[Any], docs: Path) -> list[Any]:
    done: list[Any] = []
    for entry in nav:
        (title, target), *_ = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(target, str) and target in LATER and not (docs / target).exists():
            continue
        if isinstance(target, list):
            done.append({title: _complete(target, docs)})
        elif target == "decisions":
            pages = sorted(docs.glob("decisions/[0-9]*.md"))
            done.append(
                {
                    title: [
                        "decisions/README.md",
                        *({_title(page): f"decisions/{page.name}"} for page in pages),
                    ]
                }
            )
        else:
            done.append(entry)
    return done


def _title(page: Path) -> str:
    """Return the first line of a page, without its mark."""
    return page.read_text().split("\n", 1)[0].lstrip("# ")
