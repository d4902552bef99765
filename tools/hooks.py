"""A hook of MkDocs: completes the navigation, links guides with the reference, says the version, ranks pages.

It also writes ``llms.txt``, a list of all pages for language models, and each page's Markdown beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docstrings import documented  # beside this file
from mkdocs.exceptions import PluginError

_FETCHED = re.compile(r'<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
_CORNER = re.compile(r"<th[^>]*>\s*</th>")
_VERSION = re.compile(r'__version__ = "([^"]+)"')
# How much a page counts in a search, by how its path begins: guides before lists, decisions last.
_WEIGHTS = {
    "quick-start": 2,
    "tutorial": 2,
    "reference/": 0.8,
    "coming-from-": 0.5,
    "promises": 0.5,
    "decisions/": 0.1,
}
_APART = re.compile(r"(^```.*?^```$|^#.*?$|\[[^\]]*\]\([^)]*\)|``.*?``)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"`(?:hr\.)?([A-Za-z]\w*)`")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FIRST = re.compile(r"^[A-Z][^\n]*?\.(?=\s|$)", re.MULTILINE)  # the first sentence that stands in a paragraph
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_VERBS = {"accumulate", "connect", "evaluate", "explain", "materialize", "show", "take"}


def on_config(config: Any) -> Any:
    """List the decisions in the navigation, and show the version at the foot of each page."""
    docs = Path(config["docs_dir"])
    config["nav"] = _complete(config["nav"], docs)
    version = _VERSION.search(docs.parent.joinpath("src/headrace/version.py").read_text())
    assert version is not None
    config["copyright"] = f"Headrace {version[1]}, {config['copyright']}"
    if "MIKE_DOCS_VERSION" in os.environ:  # one of several versions of the site: show the menu of the others
        config["extra"]["version"] = {"provider": "mike"}
    return config


def _complete(nav: list[Any], docs: Path) -> list[Any]:
    done: list[Any] = []
    for entry in nav:
        (title, target), *_ = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(target, list):
            done.append({title: _complete(target, docs)})
        elif target == "decisions":
            pages = sorted(docs.glob("decisions/[0-9]*.md"))
            listed = [{_title(page): f"decisions/{page.name}"} for page in pages]
            done.append({title: ["decisions/README.md", *listed]})
        else:
            done.append(entry)
    return done


def _title(page: Path) -> str:
    """Return the first line of a page, without its mark."""
    return page.read_text().split("\n", 1)[0].lstrip("# ")


def on_env(env: Any, config: Any, files: Any) -> Any:
    """Write each page's Markdown into the site, and ``llms.txt``, which lists them."""
    site, pages = Path(config["site_dir"]), []
    page = files.get_file_from_path("index.md").page
    while page is not None:  # in the order of the navigation
        copy = site / page.file.src_uri
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(page.markdown)
        section = page.parent.title if page.parent else ""
        pages.append((section, page.title, page.file.src_uri, page.markdown))
        page = page.next_page
    text = llms_txt(config["site_name"], config["site_description"], pages)
    (site / "llms.txt").write_text(text)
    return env


def llms_txt(name: str, description: str, pages: Iterable[tuple[str, str, str, str]]) -> str:
    """Return the list of pages, each given by its section, title, path and text, as llmstxt.org describes it.

    >>> start = ("", "Start", "index.md", "# Start\\n\\nHow to begin. More.")
    >>> pages = [start, ("Guides", "Files", "files.md", "# F")]
    >>> print(llms_txt("Headrace", "Batch inference.", pages), end="")
    # Headrace
    <BLANKLINE>
    > Batch inference.
    <BLANKLINE>
    - [Start](index.md): How to begin.
    <BLANKLINE>
    ## Guides
    <BLANKLINE>
    - [Files](files.md)
    """
    lines, section = [f"# {name}", "", f"> {description}", ""], ""
    for group, title, path, text in pages:
        if group != section:
            section = group
            lines += ["", f"## {group}", ""]
        first = _FIRST.search(_COMMENT.sub("", text))
        about = ": " + _LINK.sub(r"\1", first[0]) if first else ""
        lines.append(f"- [{title}]({path}){about}")
    return "\n".join(lines) + "\n"


def on_page_content(html: str, **_: Any) -> str:
    """Make the empty corner of a table a plain cell: a header that says nothing is read out as a header."""
    return _CORNER.sub("<td></td>", html)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link a guide with the reference, and leave out the list of neighbours of a page that has none."""
    if page.parent is None:
        page.meta["hide"] = ["navigation"]
    if weight := next(
        (value for path, value in _WEIGHTS.items() if page.file.src_uri.startswith(path)), None
    ):
        page.meta.setdefault("search", {})["boost"] = weight
    if page.file.src_uri == "security.md":  # it stands where those look who want to report something
        text = Path(config["docs_dir"]).parent.joinpath("SECURITY.md").read_text()
        return text.replace("](docs/", "](")
    if page.file.src_uri.startswith(("reference/", "decisions/")):
        return markdown
    return with_links(markdown, _targets())


def _targets() -> dict[str, str]:
    """Return what names in the text of a guide mean, if they cannot mean anything else."""
    names = [name for name in documented() if not name.startswith(("headrace.compat.", "headrace.core."))]
    last = {name.rpartition(".")[2]: name for name in names}
    return {name: to for name, to in last.items() if "_" in name or name in _VERBS or name[0].isupper()}


def with_links(markdown: str, targets: dict[str, str]) -> str:
    """Make a link of the first mention of each name on a page, outside of blocks, headings and other links.

    >>> with_links("# `take`\\nSee `take` and `take`.", {"take": "headrace.Dataset.take"})
    '# `take`\\nSee [`take`][headrace.Dataset.take] and `take`.'
    """
    left = dict(targets)

    def link(found: re.Match[str]) -> str:
        to = left.pop(found[1], None)
        return f"[{found[0]}][{to}]" if to else found[0]

    parts = _APART.split(markdown)
    return "".join(part if i % 2 else _NAME.sub(link, part) for i, part in enumerate(parts))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would have a browser fetch something from elsewhere."""
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch something from elsewhere: {found[0]}")
    return output


def on_post_build(config: Any) -> None:
    """Write what is searched as a script, too: a page that is opened from a folder may read no other file."""
    index = Path(config["site_dir"]) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(
        f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8"
    )
