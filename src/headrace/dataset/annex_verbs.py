"""Verbs that annexes bring to a Dataset; it lacks those of an annex that is not there."""

from typing import TYPE_CHECKING

from headrace.core.door import annex

if TYPE_CHECKING:
    from headrace.annex.databases.verbs import DatabaseWriteVerbs
    from headrace.annex.formats.verbs import FormatWriteVerbs
    from headrace.annex.lakes.verbs import LakeWriteVerbs
    from headrace.annex.llm.verbs import PromptVerbs
    from headrace.annex.queries.verbs import QueryVerbs

    class AnnexVerbs(QueryVerbs, PromptVerbs, LakeWriteVerbs, DatabaseWriteVerbs, FormatWriteVerbs):
        """All of them."""

        __slots__ = ()

else:
    _CLASSES = {
        "queries.verbs": "QueryVerbs",
        "llm.verbs": "PromptVerbs",
        "lakes.verbs": "LakeWriteVerbs",
        "databases.verbs": "DatabaseWriteVerbs",
        "formats.verbs": "FormatWriteVerbs",
    }
    _FOUND = [(annex(module), name) for module, name in _CLASSES.items()]
    AnnexVerbs = type(
        "AnnexVerbs",
        tuple(getattr(module, name) for module, name in _FOUND if module is not None),
        {"__slots__": (), "__doc__": "Those that are there.", "__module__": __name__},
    )
