"""Values with fields that must not be printed: secrets, and what is too large for a log line."""

from typing import Any, ClassVar

import msgspec


class PartlyPrinted(msgspec.Struct, frozen=True):
    """A value whose `repr` leaves out the fields named by `unprinted`."""

    unprinted: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in self.unprinted]
