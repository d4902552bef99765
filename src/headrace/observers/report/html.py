"""HTML by hand: text is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.core.terminal import visible

MOST_ROWS = 300  # of a table


_NAMES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;"))


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: Any) -> Html:
    """Escape what is not HTML; characters that would not show, or turn others around, are written out.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    if isinstance(value, Html):
        return value
    escaped = str(value)
    if not (escaped.isascii() and escaped.isprintable()):
        escaped = visible(escaped)
    for sign, name in _NAMES:
        escaped = escaped.replace(sign, name)
    return Html(escaped)


def join(parts: Iterable[Any], between: str = "") -> Html:
    """Put pieces of HTML, or text, one after the other."""
    return Html(between.join([part if isinstance(part, Html) else text(part) for part in parts]))


def tag(name: str, *inside: Any, **attributes: Any) -> Html:
    """Return an element; ``class_`` is the attribute ``class``, and an underscore within a name a hyphen.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{join(inside)}</{name}>")


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    words: Sequence[int] = (0,),
    all_: int = 0,
) -> Html:
    """Return a table that scrolls sideways within itself; columns are numbers but for those in ``words``.

    ``all_``: how many rows there are, if more than are shown.
    """
    shown = rows[:MOST_ROWS]
    kinds = [None if i in words else "number" for i in range(len(head))]
    top = join(tag("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True))
    cells = ['<td class="number">' if kind else "<td>" for kind in kinds]
    body = join(
        tag(
            "tr",
            Html("".join([f"{cell}{text(value)}</td>" for value, cell in zip(row, cells, strict=False)])),
        )
        for row in shown
    )
    made = tag("table", tag("caption", caption), tag("thead", tag("tr", top)), tag("tbody", body))
    scrolls = tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)
    left = max(all_, len(rows)) - len(shown)
    return join([scrolls, tag("p", f"… and {left:,} more rows.", class_="note")]) if left > 0 else scrolls


def pairs(rows: Iterable[tuple[Any, Any]], *, class_: str = "pairs") -> Html:
    """Return names and values as a list of descriptions."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows), class_=class_)


def share_bar(number: int, most: int, *, bad: bool = False) -> Html:
    """Return a bar for a cell of a table, as wide as a number is of the biggest."""
    return tag(
        "span",
        class_="bar bad" if bad else "bar",
        style=f"--share: {100 * number / max(most, 1):.0f}%",
        aria_hidden="true",
    )


def section(name: str, title: str, *inside: Any) -> Html:
    """Return a section with a heading that can be linked to."""
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), *inside, id=name, aria_labelledby=f"{name}-title"
    )


def chart(name: str, title: str, words: str, label: str, numbers: Any) -> Html:
    """Return the place of a chart: drawn by the page's script from the data called ``name``.

    ``label`` is read out in its place; ``numbers`` is a table of what is drawn.
    """
    about = tag("figcaption", tag("h3", title), tag("p", words))
    place = tag("div", class_="plot", data_chart=name, role="img", aria_label=label)
    below = tag("details", tag("summary", f"The numbers of “{title}”"), numbers) if numbers else ""
    return tag("figure", about, place, below, class_="chart")


def data(value: Any) -> Html:
    """Return JSON in which no HTML parser finds a tag.

    >>> data("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    encoded = msgspec.json.encode(_clean(value)).decode()
    for sign in "<>&":
        encoded = encoded.replace(sign, f"\\u{ord(sign):04x}")
    return Html(encoded)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {_clean(str(key)): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    return value
