"""Expressions of columns: ``col("km") * 2 > 5``. They become Arrow's, with Python's division."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import ArgumentError, NotOffered, nearest
from headrace.plan.expressions import OpenSum

if TYPE_CHECKING:
    import pyarrow.compute as pc

_STR = str  # a ``ColumnExpression`` has a property of this name

_MATHS = {
    "abs": "abs_checked",
    "acos": "acos_checked",
    "asin": "asin_checked",
    "atan": "atan",
    "ceil": "ceil",
    "cos": "cos_checked",
    "exp": "exp",
    "floor": "floor",
    "is_null": "is_null",
    "is_not_null": "is_valid",
    "is_valid": "is_valid",
    "ln": "ln_checked",
    "log10": "log10_checked",
    "log2": "log2_checked",
    "negate": "negate_checked",
    "sign": "sign",
    "sin": "sin_checked",
    "sqrt": "sqrt_checked",
    "tan": "tan_checked",
    "trunc": "trunc",
}
_PATTERN, _PAD, _TRIM = "MatchSubstringOptions", "PadOptions", "TrimOptions"
_NAMED = {
    "str": {
        **{
            name: (f"utf8_{name}", "")
            for name in ("capitalize", "lower", "reverse", "swapcase", "title", "upper")
        },
        **{
            f"is_{name}": (f"utf8_is_{name}", "")
            for name in ("alnum", "alpha", "decimal", "lower", "title", "upper")
        },
        **{
            name: ("utf8_is_" + name[3:], "")
            for name in ("is_digit", "is_numeric", "is_printable", "is_space")
        },
        "byte_len": ("binary_length", ""),
        "is_ascii": ("string_is_ascii", ""),
        "center": ("utf8_center", _PAD),
        "contains": ("match_substring", _PATTERN),
        "count": ("count_substring", _PATTERN),
        "count_regex": ("count_substring_regex", _PATTERN),
        "ends_with": ("ends_with", _PATTERN),
        "extract": ("extract_regex", "ExtractRegexOptions"),
        "find": ("find_substring", _PATTERN),
        "find_regex": ("find_substring_regex", _PATTERN),
        "len": ("utf8_length", ""),
        "lpad": ("utf8_lpad", _PAD),
        "lstrip": ("utf8_ltrim", _TRIM),
        "match": ("match_like", _PATTERN),
        "match_regex": ("match_substring_regex", _PATTERN),
        "replace": ("replace_substring", "ReplaceSubstringOptions"),
        "replace_regex": ("replace_substring_regex", "ReplaceSubstringOptions"),
        "rpad": ("utf8_rpad", _PAD),
        "rstrip": ("utf8_rtrim", _TRIM),
        "slice": ("utf8_slice_codeunits", "SliceOptions"),
        "split": ("split_pattern", "SplitPatternOptions"),
        "split_regex": ("split_pattern_regex", "SplitPatternOptions"),
        "split_whitespace": ("utf8_split_whitespace", "SplitOptions"),
        "starts_with": ("starts_with", _PATTERN),
        "strip": ("utf8_trim", _TRIM),
    },
    "list": {
        "flatten": ("list_flatten", ""),
        "len": ("list_value_length", ""),
        "slice": ("list_slice", "ListSliceOptions"),
    },
    "struct": {"field": ("struct_field", "StructFieldOptions")},
    "dt": {
        **{name: (name, "") for name in ("year", "month", "day", "hour", "minute", "second", "quarter")},
        **{f"{name}": (f"{name}_temporal", "RoundTemporalOptions") for name in ("ceil", "floor", "round")},
        "day_of_week": ("day_of_week", "DayOfWeekOptions"),
        "strftime": ("strftime", "StrftimeOptions"),
    },
}
"""What there is by kind of column: Arrow's function, and the class of its options, which the arguments make."""
_GIVES_TEXT = re.compile(r"utf8_(?!is_|length|split)|replace_|strftime")


Operator = Callable[["ColumnExpression", Any], "ColumnExpression"]


def _operators(function: str) -> tuple[Operator, Operator]:
    """Return the operator that a function of Arrow is, and the one for a value that stands before a column."""
    return lambda own, other: _called(function, own, other), lambda own, other: _called(function, other, own)


class ColumnExpression:
    """A value for each row, made of columns; ``col`` and ``lit`` begin one.

    ``+ - * / // % **``, where ``+`` adds numbers and joins texts; comparisons, ``& | ~``; ``is_null()``,
    ``is_not_null()``, ``is_in(values)``, ``not_in(values)``, ``fill_null(value)``, ``cast(type)``, ``abs()``,
    ``round(n)``, ``sqrt()``, ``ln()``, …; for texts ``str.upper()``, ``str.len()``, ``str.contains(text)``,
    ``str.replace(old, new)``, …. ``alias`` gives a name that has no effect here.

    ``arrow`` is the expression of pyarrow that it is made of. ``is_text`` says that its values are texts, which ``+``
    joins. ``if_texts`` is what it is where columns that it adds turn out to be texts.

    A null makes the result null, but for ``is_null``, ``fill_null``, and ``&`` and ``|`` where the other side
    decides alone (as in SQL). Division is Python's: that of integers gives fractions. What overflows or is divided by
    zero raises ``StepError`` when the plan runs.

    >>> import headrace as hr
    >>> hr.from_items([{"n": 1}, {"n": None}]).with_column("more", hr.col("n").fill_null(0) + 1).take_all()
    [{'n': 1, 'more': 2}, {'n': None, 'more': 1}]
    """

    __slots__ = ("_arrow", "_if_texts", "_is_text")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, arrow: pc.Expression, *, is_text: bool = False, if_texts: pc.Expression | None = None
    ) -> None:
        self._arrow = arrow
        self._is_text = is_text
        self._if_texts = if_texts

    @property
    def arrow(self) -> pc.Expression:
        """The expression as pyarrow's own."""
        return self._arrow

    def __repr__(self) -> str:
        return f"ColumnExpression({self._arrow})"

    def __bool__(self) -> NoReturn:
        raise ArgumentError(
            "An expression of columns has no truth value before it is computed. Combine conditions with & | ~ "
            "instead of and, or, not, and put each in parentheses: (col('a') > 1) & (col('b') < 2)."
        )

    def __getattr__(self, name: str) -> Callable[[], ColumnExpression]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _MATHS:
            known = [*_MATHS, *(each for each in dir(type(self)) if not each.startswith("_"))]
            raise NotOffered(
                f"An expression of columns has no {name!r}.{nearest(name, known)} Functions of pyarrow.compute work, "
                "too, on pyarrow.compute.field('a'); and map_batches takes your own function."
            )
        return lambda: _called(_MATHS[name], self)

    # ------------------------------------------------------------ operators

    def __add__(self, other: Any) -> ColumnExpression:
        return _sum(self, other)

    def __radd__(self, other: Any) -> ColumnExpression:
        return _sum(other, self)

    def __truediv__(self, other: Any) -> ColumnExpression:
        return _quotient(self, other)

    def __rtruediv__(self, other: Any) -> ColumnExpression:
        return _quotient(other, self)

    def __floordiv__(self, other: Any) -> ColumnExpression:
        return _called("floor", _quotient(self, other))

    def __rfloordiv__(self, other: Any) -> ColumnExpression:
        return _called("floor", _quotient(other, self))

    def __mod__(self, other: Any) -> ColumnExpression:
        made: ColumnExpression = self - (self // other) * other
        return made

    def __rmod__(self, other: Any) -> ColumnExpression:
        return _expression(other) % self

    def __neg__(self) -> ColumnExpression:
        return _called("negate_checked", self)

    def __invert__(self) -> ColumnExpression:
        return _called("invert", self)

    __sub__, __rsub__ = _operators("subtract_checked")
    __mul__, __rmul__ = _operators("multiply_checked")
    __and__, __rand__ = _operators("and_kleene")
    __or__, __ror__ = _operators("or_kleene")
    __pow__, _ = _operators("power_checked")
    __eq__, _ = _operators("equal")  # type: ignore[assignment]
    __ne__, _ = _operators("not_equal")  # type: ignore[assignment]
    __lt__, _ = _operators("less")
    __le__, _ = _operators("less_equal")
    __gt__, _ = _operators("greater")
    __ge__, _ = _operators("greater_equal")

    # ------------------------------------------------------------ functions with arguments

    def is_in(self, values: Iterable[Any]) -> ColumnExpression:
        """Say whether the value is one of ``values``; null is not, unless None is one of them."""
        within = [*values]
        try:
            found = self._made(lambda arrow: arrow.isin(within))
        except OverflowError as error:
            raise _unusable(within, error) from None
        zero = any(isinstance(value, float | int) and value is not False and value == 0 for value in within)
        return (
            found | ((self == 0) & self.is_not_null()) if zero else found
        )  # Arrow takes -0.0 for another value

    isin = is_in

    def not_in(self, values: Iterable[Any]) -> ColumnExpression:
        """Say whether the value is none of ``values``."""
        return _called("invert", self.is_in(values))

    def fill_null(self, value: Any) -> ColumnExpression:
        """Put ``value`` in the place of nulls."""
        made = _called("coalesce", self, value)
        return _texts(made) if self._is_text or isinstance(value, _STR) else made

    def cast(self, type: Any, *, safe: bool = True) -> ColumnExpression:
        """Change the type; a value that does not fit is an error, unless ``safe`` is False."""
        given = getattr(type, "to_arrow_dtype", lambda: type)()
        is_text = "string" in f"{given}" or "utf8" in f"{given}"
        return self._made(lambda arrow: arrow.cast(given, safe=safe), is_text=is_text)

    def _made(
        self, make: Callable[[pc.Expression], pc.Expression], *, is_text: bool = False
    ) -> ColumnExpression:
        """Make another expression of this one, in either meaning that it may have."""
        if_texts = None if self._if_texts is None else make(self._if_texts)
        return ColumnExpression(make(self._arrow), is_text=is_text, if_texts=if_texts)

    def power(self, exponent: Any) -> ColumnExpression:
        """Raise to a power."""
        return _called("power_checked", self, exponent)

    def round(self, decimals: int = 0) -> ColumnExpression:
        """Round to so many digits behind the point; halves go to the even digit, as in Python."""
        import pyarrow.compute as pc

        return _called("round", self, options=pc.RoundOptions(decimals, "half_to_even"))

    def alias(self, name: str) -> ColumnExpression:
        """Return the expression: a column's name is said by ``with_column``."""
        return self

    @property
    def str(self) -> Namespace:
        """What there is for texts."""
        return Namespace("str", _texts(self))

    @property
    def list(self) -> Namespace:
        """What there is for lists."""
        return Namespace("list", self)

    @property
    def struct(self) -> Namespace:
        """What there is for structs."""
        return Namespace("struct", self)

    @property
    def dt(self) -> Namespace:
        """What there is for dates and times."""
        return Namespace("dt", self)


class Namespace:
    """What there is for columns of one kind: ``col("name").str.upper()``, ``col("user").struct["age"]``.

    ``str``: ``contains``, ``starts_with``, ``ends_with``, ``match`` (as ``LIKE`` in SQL), ``match_regex`` (RE2),
    ``replace``, ``split``, ``slice``, ``strip``, ``len``, …. ``list``: ``len``, ``get``, ``slice``, ``flatten``.
    ``dt``: ``year``, …, ``strftime``, ``floor``. Arguments are those of Arrow's functions.
    """

    __slots__ = ("_kind", "_of")

    def __init__(self, kind: _STR, of: ColumnExpression) -> None:
        self._kind, self._of = kind, of

    def __getattr__(self, name: _STR) -> Callable[..., ColumnExpression]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _NAMED[self._kind]:
            raise NotOffered(
                f"There is no .{self._kind}.{name} of a column.{nearest(name, _NAMED[self._kind])} map_batches takes "
                "your own function."
            )
        return partial(self._call, name)

    def __getitem__(self, key: Any) -> ColumnExpression:
        if isinstance(key, slice):
            return self._call("slice", key.start or 0, key.stop, key.step or 1)
        return self.get(key) if self._kind == "list" else self._call("field", key)

    def get(self, index: int) -> ColumnExpression:
        """Return an element of a list by its place, from 0."""
        return _called("list_element", self._of, index)

    def _call(self, name: _STR, *args: Any, **kwargs: Any) -> ColumnExpression:
        import pyarrow.compute as pc

        function, made_by = _NAMED[self._kind][name]
        if made_by == _TRIM and not args and not kwargs:
            function, made_by = f"{function}_whitespace", ""
        try:
            options = getattr(pc, made_by)(*args, **kwargs) if made_by else None
        except TypeError as error:
            raise ArgumentError(f".{self._kind}.{name}(…): {error}.") from None
        return _called(function, self._of, options=options, is_text=bool(_GIVES_TEXT.match(function)))


def col(name: str) -> ColumnExpression:
    """Return the column ``name``, for ``filter(expr=…)`` and ``with_column``.

    Parameters
    ----------
    name
        Of a column that the rows have there.

    Raises
    ------
    ArgumentError
        ``name`` is no text. ``UnknownColumn``, for one that is not there, comes when the plan runs.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.range(4).filter(expr=(hr.col("id") > 0) & (hr.col("id") != 2))
    >>> data.with_column("half", hr.col("id") / 2).take_all()
    [{'id': 1, 'half': 0.5}, {'id': 3, 'half': 1.5}]
    """
    import pyarrow.compute as pc

    if not isinstance(name, str) or not name:
        raise ArgumentError(f"col({name!r}): it takes the name of a column.")
    return ColumnExpression(pc.field(name))


def lit(value: Any) -> ColumnExpression:
    """Return a value that is the same in each row, for an expression of columns.

    Parameters
    ----------
    value
        A number, a text, a bool, None, a date or time, …; or a ``pyarrow.Scalar``.

    Raises
    ------
    ArgumentError
        Arrow has no type for ``value``.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.range(2).with_column("source", hr.lit("web")).take_all()
    [{'id': 0, 'source': 'web'}, {'id': 1, 'source': 'web'}]
    """
    return _expression(value)


def arrow_expression(value: Any) -> pc.Expression | OpenSum | None:
    """Return the Arrow expression that ``value`` is or holds; None for anything else."""
    import pyarrow.compute as pc

    if isinstance(value, ColumnExpression):
        return value.arrow if value._if_texts is None else OpenSum(value.arrow, value._if_texts)
    return value if isinstance(value, pc.Expression) else None


def _expression(value: Any) -> ColumnExpression:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(value, ColumnExpression):
        return value
    if isinstance(value, pc.Expression):
        return ColumnExpression(value)
    try:
        if isinstance(value, int) and 2**63 <= value < 2**64:
            value = pa.scalar(value, pa.uint64())
        return ColumnExpression(pc.scalar(value), is_text=isinstance(value, _STR))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise _unusable(value, error) from None


def _unusable(value: Any, error: Exception) -> ArgumentError:
    return ArgumentError(f"{value!r} cannot be used in an expression of columns: {error}.")


def _called(function: str, *values: Any, options: Any = None, is_text: bool = False) -> ColumnExpression:
    import pyarrow.compute as pc

    arguments = [*map(_expression, values)]
    if_texts = None
    if any(each._if_texts is not None for each in arguments):
        if_texts = pc.Expression._call(function, [_texts(each).arrow for each in arguments], options)
    called = pc.Expression._call(function, [each.arrow for each in arguments], options)
    return ColumnExpression(called, is_text=is_text, if_texts=if_texts)


def _sum(left: Any, right: Any) -> ColumnExpression:
    """Add, or join texts; where neither is known to be a text, the types of columns decide."""
    pair = _expression(left), _expression(right)
    joined = _called("binary_join_element_wise", *map(_texts, pair), "", is_text=True)
    if any(each._is_text for each in pair):
        return joined
    return ColumnExpression(_called("add_checked", *pair).arrow, if_texts=joined.arrow)


def _texts(of: ColumnExpression) -> ColumnExpression:
    """Return the expression where its columns are texts."""
    return ColumnExpression(of.arrow if of._if_texts is None else of._if_texts, is_text=True)


def _quotient(left: Any, right: Any) -> ColumnExpression:
    """Divide as Python does: Arrow's division of integers drops what is behind the point."""
    import pyarrow as pa

    return _called("divide_checked", _expression(left).cast(pa.float64()), right)
