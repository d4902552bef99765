"""Conditions on columns that a user wrote as text: ``"km > 2 and city in ['Oslo', 'Bonn']"``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from headrace.core.human import short_repr
from headrace.errors import ArgumentError
from headrace.plan.column_expressions import ColumnExpression, arrow_expression, col, lit

_HELP = "such as hr.col('x') > 3, pc.field('x') > 3, or its text, 'x > 3'"
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SQL = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|\bis\s+not\s+null\b|\bis\s+null\b|\b(?:and|or|not|in|true|false)\b|<>|(?<![<>=!])=(?!=)""",
    re.IGNORECASE,
)
_PYTHON = {
    "is not null": "is not None",
    "is null": "is None",
    "true": "True",
    "false": "False",
    "<>": "!=",
    "=": "==",
}
_JOINED: dict[type, Callable[[Any, Any], Any]] = {ast.And: operator.and_, ast.Or: operator.or_}


def given_expression(value: Any, verb: str = "filter(expr=") -> Any:
    """Read an expression of columns, Arrow's or ours, or the text of one in Python's grammar. A name is a column.

    A text that is none in Python is read as SQL has conditions: ``"km IS NULL OR city <> 'Oslo'"``.

    >>> given_expression("km > 2 and not city in ['Oslo']")
    <pyarrow.compute.Expression ((km > 2) and invert(is_in(city, {value_set=string:[
      "Oslo"
    ], null_matching_behavior=MATCH})))>
    """
    import pyarrow as pa

    given = arrow_expression(value)
    if given is not None:
        return given
    call = f"{verb}{short_repr(value)})"
    if not isinstance(value, str):
        raise ArgumentError(f"{call}: it takes an expression {_HELP}.")
    try:
        made = _of(_parsed(value.strip()))
    except SyntaxError as error:
        raise ArgumentError(f"{call}: this is not an expression ({error.msg}); {_HELP}.") from None
    except (_Unknown, TypeError, pa.ArrowException) as error:
        raise ArgumentError(
            f"{call}: {error}. Columns, values, + - * /, comparisons, in, and, or, not, is None are "
            "understood; for more give a function of a row."
        ) from None
    expression = arrow_expression(made)
    if expression is None:
        raise ArgumentError(f"{call}: it names no column. Expressions are {_HELP}.")
    return expression


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        made = ast.parse(_SQL.sub(_in_python, text), mode="eval").body
    kinds = {type(node) for node in ast.walk(made)}
    if ast.NotIn in kinds or {ast.Not, ast.In} <= kinds:
        raise _Unknown("NOT with IN leaves out nulls in SQL, and keeps them in Python. Write it in Python")
    return made


def _in_python(found: re.Match[str]) -> str:
    word = found[0]
    if word[0] == "'":
        return repr(word[1:-1].replace("''", "'"))
    return word if word[0] == '"' else _PYTHON.get(" ".join(word.lower().split()), word.lower())


class _Unknown(Exception):
    """Something that is no part of a condition."""


def _of(node: ast.expr) -> Any:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return col(ast.unparse(node))
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_of(each) for each in node.elts]
    if isinstance(node, ast.BoolOp):
        join = _JOINED[type(node.op)]
        first, *others = map(_of, node.values)
        for other in others:
            first = join(first, other)
        return first
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_of(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _of(node.operand)
        return lit(0) - value if isinstance(value, ColumnExpression) else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _joined(node.op, _of(node.left), _of(node.right))
    if isinstance(node, ast.Compare):
        return _compared(node)
    raise _Unknown(f"{ast.unparse(node)!r} is not understood")


def _compared(node: ast.Compare) -> Any:
    result = None
    left = node.left
    for op, right in zip(node.ops, node.comparators, strict=True):
        each = _pair(op, _of(left), right)
        result = each if result is None else result & each
        left = right
    return result


def _pair(op: ast.cmpop, left: Any, right: ast.expr) -> Any:
    if isinstance(op, (ast.In, ast.NotIn)):
        values = _of(right)
        if not isinstance(left, ColumnExpression) or not isinstance(values, list):
            raise _Unknown("'in' stands between a column and a list of values")
        found = left.isin(values)
        return ~found if isinstance(op, ast.NotIn) else found
    if isinstance(op, (ast.Is, ast.IsNot)) and isinstance(right, ast.Constant) and right.value is None:
        return left.is_null() if isinstance(op, ast.Is) else left.is_valid()
    if type(op) in _BINARY:
        return _joined(op, left, _of(right))
    raise _Unknown(f"the comparison with {ast.unparse(right)!r} is not understood")


def _joined(op: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:

    if isinstance(right, ColumnExpression) and not isinstance(left, ColumnExpression):
        left = lit(left)
    return _BINARY[type(op)](left, right)
