"""Syntax trees as text: two are told apart where ``ast.dump`` tells them apart, and only there."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

from headrace.plan import reached

SNIPPETS = """x
'x'
b'x'
1
1.0
1j
True
None
...
x.y
x[y]
x[y:z]
x[y:]
x[:y]
x(y)
x(*y)
x(**y)
x(y=z)
x(y, z)
x((y, z))
(x, y)
[x, y]
[[x], y]
{x, y}
{x: y}
{**x}
{1, 2}
x and y
x or y
not x
-x
x + y
x - y
x < y
x < y < z
x if y else z
lambda x: y
lambda x, /: y
lambda *, x: y
lambda *x: y
lambda **x: y
lambda x=y: x
f'{x}'
f'{x!r}'
f'{x:y}'
'{x}'
[x for x in y]
[x for x in y if z]
{x for x in y}
{x: x for x in y}
(x for x in y)
x = y
x = y = z
x += y
x: y
x: y = z
(x := y)
del x
pass
break
import x
import x as y
import x.y
from x import y
from x import y as z
from . import x
from .. import x
from x import *
global x
assert x
assert x, y
raise x
raise x from y
return x
for x in y: z
while x: y
with x: y
with x as y: z
if x: y
if x: y
else: z
try: x
except y: z
try: x
except: z
try: x
finally: z
def x(): y()
def x(y): z()
def x() -> y: z()
async def x(): y()
@x
def y(): z()
class x: y()
class x(y): z()
class x(y=z): z()
match x:
 case y: z
match x:
 case 1: z
match x:
 case [y, *_]: z
match x:
 case {'y': y}: z"""


def test_what_differs_in_a_dump_differs_here() -> None:
    sources, held = [], ""
    for line in SNIPPETS.splitlines():
        held = f"{held}\n{line}" if held else line
        try:
            ast.parse(held)
        except SyntaxError:
            continue
        sources.append(f"pass\n{held}")  # a text at the start would be for readers
        held = "" if not line.startswith((" ", "if", "try", "for", "while", "with", "match")) else held
    sources.append(Path(reached.__file__).read_text())
    trees = [ast.parse(source) for source in sources]
    dumps, texts = [ast.dump(tree) for tree in trees], [reached._Read(tree).text() for tree in trees]
    assert len(sources) > 80
    for one, other in itertools.combinations(range(len(trees)), 2):
        assert (dumps[one] == dumps[other]) == (texts[one] == texts[other]), (sources[one], sources[other])


def test_words_for_readers_make_no_difference() -> None:
    one = 'def f(x):\n    """Say it."""\n    return {1, 2}  # why\n'
    other = "def f( x ):\n    return {2, 1}\n"
    texts = {reached._Read(ast.parse(source)).text() for source in (one, other)}
    assert len(texts) == 1
    read = reached._Read(ast.parse("import a.b\ndef f():\n    from ..c import d\n"))
    assert [set(reached._imported(node, "p.q")) for node in read.imports] == [
        {"a", "a.b"},
        {"p", "p.c", "p.c.d"},
    ]
