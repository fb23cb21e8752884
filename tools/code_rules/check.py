"""Which rule holds where."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .cycles import import_cycles
from .excepts import broad_excepts_speak
from .migrations import migrations_are_one_chain
from .names import class_names_are_unique
from .purity import decisions_are_pure, environment_is_read_in_settings, tests_do_not_sleep
from .sources import PRODUCT, Finding, Source, read_sources
from .tasks import tasks_have_owners

KIT = "tests/kit/"
MAY_READ_ENVIRONMENT = ("src/corral/processes/settings.py", KIT)
Rule = Callable[[Source], Iterator[Finding]]


def is_decision(file: str) -> bool:
    """`decide.py` of a room, or a file of its `decide/`."""
    return file.startswith(PRODUCT) and "decide" in Path(file).with_suffix("").parts


def rules_for(file: str) -> Iterator[Rule]:
    if file.startswith("tests/") and not (file.startswith(KIT) and "/test_" not in file):
        yield tests_do_not_sleep
        return
    yield tasks_have_owners
    yield broad_excepts_speak
    if is_decision(file):
        yield decisions_are_pure
    if not file.startswith(MAY_READ_ENVIRONMENT):
        yield environment_is_read_in_settings


def check(sources: Iterable[Source]) -> list[Finding]:
    sources = list(sources)
    findings = [finding for source in sources for rule in rules_for(source.file) for finding in rule(source)]
    product = [source for source in sources if source.file.startswith(PRODUCT)]
    findings += import_cycles(product)
    findings += class_names_are_unique(product)
    findings += migrations_are_one_chain(sources)
    return sorted(set(findings))


def main(words: list[str]) -> int:
    root = Path(words[0]) if words else Path(__file__).resolve().parents[2]
    findings = check(read_sources(root))
    for finding in findings:
        print(finding)
    return 1 if findings else 0
