import importlib
import pkgutil
from typing import ClassVar

import msgspec
from rich.pretty import pretty_repr

import corral
from corral.base.values import PartlyPrinted


class Login(PartlyPrinted, frozen=True, kw_only=True):
    unprinted: ClassVar = ("password",)

    name: str
    password: str = ""


class Door(msgspec.Struct, frozen=True):
    login: Login


def test_unprinted_fields_are_in_no_text_of_a_value():
    login = Login(name="ada", password="s3cret")

    assert repr(login) == str(login) == "Login(name='ada')"
    assert "s3cret" not in f"{Door(login=login)} {Door(login=login)!r} {pretty_repr(Door(login=login))}"


def test_unprinted_fields_count_when_values_are_compared():
    assert Login(name="ada", password="a") != Login(name="ada", password="b")
    assert Login(name="ada", password="a") == Login(name="ada", password="a")


def test_every_unprinted_name_is_a_field():
    """A name that is misspelt, or of a field that was renamed, would print the secret."""
    for module in pkgutil.walk_packages(corral.__path__, "corral."):
        if "__main__" not in module.name and ".migrations" not in module.name:
            importlib.import_module(module.name)
    kinds = [kind for kind in _below(PartlyPrinted) if kind is not Login]

    assert len(kinds) > 30
    assert [(kind, name) for kind in kinds for name in kind.unprinted if name not in kind.__struct_fields__] == []
    assert [kind for kind in kinds if not kind.unprinted] == []


def _below(kind: type[PartlyPrinted]) -> list[type[PartlyPrinted]]:
    return [each for child in kind.__subclasses__() for each in (child, *_below(child))]
