"""Each rule of `tools/code_rules/`, fed with small sources."""

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Check = Callable[[dict[str, str]], list[str]]


@pytest.fixture
def check(code_rules: ModuleType) -> Check:
    def run(files: dict[str, str]) -> list[str]:
        sources = [code_rules.sources.Source(file, ast.parse(textwrap.dedent(text))) for file, text in files.items()]
        return [str(finding) for finding in code_rules.check.check(sources)]

    return run


def service(body: str, header: str = "import asyncio") -> dict[str, str]:
    """One module of the product, with an async function around `body`."""
    text = "\n".join(["async def work(loop):", textwrap.indent(textwrap.dedent(body), "    ")])
    return {"src/corral/frontend/nodes/health.py": f"{header}\n{text}\n"}


# Names.


def test_a_class_name_that_exists_already_is_found(check: Check) -> None:
    findings = check(
        {"src/corral/base/a.py": "class Part: ...", "src/corral/base/b.py": "def f():\n    class Part: ...\n"}
    )

    assert findings == ["src/corral/base/b.py:2: the class name Part exists already, in src/corral/base/a.py"]


def test_overloads_of_a_class_in_one_file_and_classes_of_tests_are_left_alone(check: Check) -> None:
    either = "if x:\n    class A: ...\nelse:\n    class A: ...\n"

    assert check({"src/corral/base/a.py": either, "tests/kit/a.py": "class A: ..."}) == []


# Import cycles.


def test_a_cycle_of_plain_imports_is_found(check: Check) -> None:
    findings = check(
        {
            "src/corral/base/a.py": "from corral.base.b import x",
            "src/corral/base/b.py": "import corral.base.c",
            "src/corral/base/c.py": "from . import a",
        }
    )

    assert len(findings) == 1
    assert findings[0].startswith("src/corral/base/a.py:1: import cycle: ")
    assert "corral.base.a -> corral.base.b -> corral.base.c -> corral.base.a" in findings[0]


def test_a_cycle_closed_inside_a_function_is_named_as_hidden(check: Check) -> None:
    findings = check(
        {
            "src/corral/base/a.py": "import corral.base.b",
            "src/corral/base/b.py": "def f():\n    from corral.base import a\n",
        }
    )

    assert findings == [
        "src/corral/base/b.py:2: import cycle hidden in a function: corral.base.b -> corral.base.a -> corral.base.b"
    ]


def test_a_cycle_closed_by_type_checking_is_named_as_such(check: Check) -> None:
    types_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from corral.base.a import A\n"

    findings = check({"src/corral/base/a.py": "from corral.base import b", "src/corral/base/b.py": types_only})

    assert findings == [
        "src/corral/base/b.py:3: import cycle among imports for types only: "
        "corral.base.b -> corral.base.a -> corral.base.b"
    ]


def test_the_else_of_type_checking_is_a_plain_import(check: Check) -> None:
    either = "if typing.TYPE_CHECKING:\n    pass\nelse:\n    import corral.base.a\n"

    findings = check({"src/corral/base/a.py": "import corral.base.b", "src/corral/base/b.py": either})

    assert [finding.split(": ")[1] for finding in findings] == ["import cycle"]


def test_only_the_shortest_cycle_of_a_knot_is_told(check: Check) -> None:
    findings = check(
        {
            "src/corral/a.py": "import corral.b",
            "src/corral/b.py": "import corral.c\nimport corral.a",
            "src/corral/c.py": "import corral.a",
        }
    )

    assert [finding.split("cycle: ")[1] for finding in findings] == ["corral.a -> corral.b -> corral.a"]


def test_two_knots_are_two_findings(check: Check) -> None:
    findings = check(
        {
            "src/corral/a.py": "import corral.b",
            "src/corral/b.py": "import corral.a",
            "src/corral/c.py": "import corral.d",
            "src/corral/d.py": "import corral.c",
        }
    )

    assert len(findings) == 2


def test_a_package_that_gathers_its_modules_is_no_cycle(check: Check) -> None:
    findings = check(
        {
            "src/corral/base/__init__.py": "from corral.base.ids import NodeId\nfrom .errors import CorralError",
            "src/corral/base/ids.py": "from corral.base.errors import CorralError",
            "src/corral/base/errors.py": "from corral.base import clock",
            "src/corral/base/clock.py": "",
        }
    )

    assert findings == []


def test_a_module_that_asks_its_package_for_a_name_is_a_cycle(check: Check) -> None:
    findings = check(
        {
            "src/corral/base/__init__.py": "from .ids import NodeId",
            "src/corral/base/ids.py": "from . import CorralError",
        }
    )

    assert [finding.split(": ")[1] for finding in findings] == ["import cycle"]


def test_relative_imports_climb_packages(check: Check) -> None:
    findings = check(
        {
            "src/corral/frontend/diagnosis/doctor/control.py": "from ....base import ids",
            "src/corral/base/ids.py": "import corral.frontend.diagnosis.doctor.control",
        }
    )

    assert [finding.split(": ")[1] for finding in findings] == ["import cycle"]


# Tasks.


@pytest.mark.parametrize(
    ("statement", "header"),
    [
        ("asyncio.create_task(f())", "import asyncio"),
        ("_ = asyncio.create_task(f())", "import asyncio"),
        ("aio.ensure_future(f())", "import asyncio as aio"),
        ("create_task(f())", "from asyncio import create_task"),
        ("spawn(f())", "from asyncio import create_task as spawn"),
        ("loop.create_task(f())", ""),
        ("asyncio.get_running_loop().create_task(f())", "import asyncio"),
        ("asyncio.run_coroutine_threadsafe(f(), loop)", "import asyncio"),
    ],
)
def test_a_dropped_task_is_found(check: Check, statement: str, header: str) -> None:
    findings = check(service(statement, header))

    assert len(findings) == 1
    assert "is dropped" in findings[0]


def test_a_dropped_task_is_found_even_where_tasks_may_be_created(check: Check) -> None:
    findings = check({"src/corral/base/tasks.py": "import asyncio\nasyncio.create_task(f())"})

    assert len(findings) == 1


def test_tasks_are_created_in_one_module_only(check: Check) -> None:
    kept = "import asyncio\ntask = asyncio.create_task(f())"

    assert check({"src/corral/base/tasks.py": kept}) == []
    assert [finding.split(": ")[1] for finding in check({"src/corral/worker/processes/process.py": kept})] == [
        "create_task outside base/tasks.py"
    ]


def test_a_future_from_another_thread_may_be_kept(check: Check) -> None:
    assert check(service("future = asyncio.run_coroutine_threadsafe(f(), loop)")) == []


@pytest.mark.parametrize("opening", ["asyncio.TaskGroup() as group", "open() as f, asyncio.TaskGroup() as group"])
def test_a_task_group_may_create_tasks(check: Check, opening: str) -> None:
    assert check(service(f"async with {opening}:\n    group.create_task(f())\n    task = group.create_task(g())")) == []


def test_a_task_group_may_be_handed_in(check: Check) -> None:
    text = "import asyncio\ndef start(group: asyncio.TaskGroup) -> None:\n    group.create_task(f())\n"

    assert check({"src/corral/frontend/nodes/health.py": text}) == []


def test_something_else_in_an_async_with_is_no_task_group(check: Check) -> None:
    assert len(check(service("async with session() as group:\n    group.create_task(f())"))) == 1


# Decisions.


@pytest.mark.parametrize(
    "text",
    [
        "async def f(): ...",
        "import logging",
        "import os.path",
        "from time import monotonic",
        "def f():\n    import random\n",
        "import datetime\nnow = datetime.datetime.now()",
        "from datetime import datetime, UTC\nnow = datetime.now(UTC)",
        "from datetime import datetime\nmake = datetime.utcnow",
        "from datetime import date\ntoday = date.today()",
        "from corral.frontend.nodes.store.nodes import Nodes",
        "from corral.galleries.cache import GalleryCache",
    ],
)
def test_decisions_must_be_pure(check: Check, text: str) -> None:
    assert len(check({"src/corral/frontend/nodes/decide/node.py": text})) == 1
    assert check({"src/corral/frontend/nodes/health.py": text}) == []


@pytest.mark.parametrize(
    "module", ["base.ids", "wire.nodes", "galleries.fit", "frontend.record.decide", "frontend.nodes.decide.node"]
)
def test_decisions_may_use_what_is_pure(check: Check, module: str) -> None:
    text = f"from corral.{module} import something"

    assert check({"src/corral/frontend/rules/decide.py": text}) == []


def test_decisions_may_handle_times_that_are_passed_in(check: Check) -> None:
    text = "from datetime import datetime, timedelta\ndef f(clock, now: datetime): return now + timedelta(1)"

    assert check({"src/corral/frontend/nodes/decide/node.py": text}) == []


# The environment.


@pytest.mark.parametrize(
    "text",
    [
        "import os\nx = os.environ['X']",
        "import os\nx = os.getenv('X')",
        "import os as system\nx = dict(system.environ)",
        "from os import environ\nx = environ.get('X')",
    ],
)
def test_only_the_settings_read_the_environment(check: Check, text: str) -> None:
    assert len(check({"src/corral/bus/server.py": text})) == 1
    assert check({"src/corral/processes/settings.py": text}) == []
    assert check({"tests/kit/cluster.py": text}) == []


# Sleeps.


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(x)",
        "from time import sleep\nsleep(0)",
        "import asyncio\nasync def f(): await asyncio.sleep(0.1)",
        "import asyncio\nasync def f(): await asyncio.sleep(delay=1)",
        "from asyncio import sleep\nasync def f(): await sleep(2 * 60)",
    ],
)
def test_tests_do_not_sleep(check: Check, text: str) -> None:
    assert len(check({"tests/unit/test_node.py": text})) == 1
    assert check({"tests/kit/gates.py": text}) == []


@pytest.mark.parametrize("duration", ["0", "0.0", "period.total_seconds()", "delay"])
def test_giving_way_and_computed_waits_are_no_sleeping(check: Check, duration: str) -> None:
    text = f"import asyncio\nasync def f(): await asyncio.sleep({duration})"

    assert check({"tests/unit/test_node.py": text}) == []


# Broad excepts.


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException as error", " (ValueError, Exception)"])
def test_a_broad_except_that_swallows_is_found(check: Check, caught: str) -> None:
    findings = check(service(f"try:\n    f()\nexcept{caught}:\n    log.error('failed')"))

    assert [finding.split(": ")[1] for finding in findings] == [
        "a broad except that neither raises nor logs the exception"
    ]


@pytest.mark.parametrize(
    "answer",
    [
        "raise",
        "raise Other() from None",
        "if x:\n        raise",
        "log.exception('failed')",
        "self._log.exception('failed')",
        "log.warning('failed', exc_info=True)",
    ],
)
def test_a_broad_except_may_raise_or_log(check: Check, answer: str) -> None:
    assert check(service(f"try:\n    f()\nexcept Exception:\n    {answer}")) == []


def test_a_raise_in_a_function_defined_there_does_not_count(check: Check) -> None:
    assert len(check(service("try:\n    f()\nexcept Exception:\n    def g():\n        raise\n"))) == 1


def test_a_narrow_except_may_be_silent(check: Check) -> None:
    assert check(service("try:\n    f()\nexcept (OSError, ValueError):\n    pass")) == []


def test_suppressing_everything_is_a_broad_except(check: Check) -> None:
    header = "import contextlib"

    assert len(check(service("with contextlib.suppress(Exception):\n    f()", header))) == 1
    assert check(service("with contextlib.suppress(OSError):\n    f()", header)) == []


# The program.


def test_findings_are_printed_and_fail_the_run(
    code_rules: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = tmp_path / "src/corral/frontend/nodes/decide"
    room.mkdir(parents=True)
    (room / "node.py").write_text("import time\n")

    assert code_rules.check.main([str(tmp_path)]) == 1
    assert (
        capsys.readouterr().out
        == "src/corral/frontend/nodes/decide/node.py:1: import of time in a decision: it must be pure\n"
    )


def test_generated_code_is_left_alone(code_rules: ModuleType, tmp_path: Path) -> None:
    generated = tmp_path / "src/corral/rpc/_generated"
    generated.mkdir(parents=True)
    (generated / "backend_pb2.py").write_text("import os\nos.environ\n")

    assert code_rules.check.main([str(tmp_path)]) == 0


# Migrations.


def migration(revision: str, follows: str | None) -> str:
    return f"revision = {revision!r}\ndown_revision = {follows!r}\n"


def test_two_migrations_of_one_number_or_after_the_same_one_are_found(check: Check) -> None:
    folder = "src/corral/frontend/store/migrations/versions"
    chain = {f"{folder}/r0001_a.py": migration("0001", None), f"{folder}/r0002_b.py": migration("0002", "0001")}
    assert check(chain) == []
    assert check({**chain, f"{folder}/r0003_c.py": migration("0003", "0001")}) == [
        f"{folder}/r0003_c.py:2: down_revision is '0001', as in {folder}/r0002_b.py; give it the next free number, and "
        "let it follow it"
    ]
    assert len(check({**chain, f"{folder}/r0002_c.py": migration("0002", "0001")})) == 2
