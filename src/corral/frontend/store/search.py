"""Conditions by which people look for rows: by who did it, by the beginning of an id, by a text inside.

The first two can use an index of their column, on both databases: texts are in the order of their code points.
"""

from typing import Any, Final

from sqlalchemy import ColumnElement, Text, and_, cast, func, or_

_LAST: Final = "\U0010ffff"
"""Sorts after whatever an id goes on with."""
_WHOLE_ID: Final = 36


def by_actor(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Somebody of this name: a key, or a user with any of their keys, who is called `USER (KEY)`."""
    return or_(column == name, and_(column > f"{name} (", column < f"{name} )"))


def by_id(column: ColumnElement[Any], beginning: str) -> ColumnElement[bool]:
    """The id, or the beginning of one."""
    if len(beginning) >= _WHOLE_ID:
        return column == beginning
    return and_(column >= beginning, column < beginning + _LAST)


def containing(text: str, *columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """The text is somewhere in one of these, whatever its case. Every row that is left has to be read for that."""
    lowered = text.lower()
    return or_(*(func.lower(cast(column, Text)).contains(lowered, autoescape=True) for column in columns))
