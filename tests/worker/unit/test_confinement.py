"""What is decided about confinement: networks, users, variables, rules of Landlock, and programs for the kernel."""

import asyncio
import json
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.wire.confinement import BackendNetwork, ConfinementWish
from corral.wire.replicas import ProcessKey
from corral.worker.confinement.call_filter import ARCHITECTURES, call_filter
from corral.worker.confinement.cgroups import end_left_groups, find_parents, make_group
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.confiner import Confiner, decide_network, user_of
from corral.worker.confinement.environment import inherited
from corral.worker.confinement.granted_files import (
    BackendPlaces,
    around_data,
    granted_files,
    holds,
    left_out,
    runtime_parts,
)
from corral.worker.confinement.landlock import FileAccess, PortAccess, ruleset
from corral.worker.confinement.loopback_programs import LOOPBACK_4, LOOPBACK_6
from corral.worker.confinement.machine import Abilities, closed_to_others, look, make_devices, report
from corral.worker.installing.backend_directory import Home
from corral.worker.processes.process import Launch, looks_denied

ALLOW, EPERM, EACCES, ENOSYS, ENOTSUP, EAFNOSUPPORT = -1, 1, 13, 38, 95, 97
NETWORKS = st.sampled_from(BackendNetwork)
X86 = ARCHITECTURES["x86_64"]


@given(declared=NETWORKS, usual=NETWORKS)
def test_a_manifest_can_only_ask_for_less(declared: BackendNetwork, usual: BackendNetwork) -> None:
    order = list(BackendNetwork)
    decided = decide_network(ConfinementWish(), declared, usual)
    assert order.index(decided) == min(order.index(declared), order.index(usual))


@given(manifest=st.sampled_from(["", "none", "any", "bogus"]), usual=NETWORKS, wish=NETWORKS)
def test_an_administrator_decides_before_manifest_and_setting(
    manifest: str, usual: BackendNetwork, wish: BackendNetwork
) -> None:
    assert decide_network(ConfinementWish(network=wish), manifest, usual) is wish


def test_a_word_that_nobody_knows_gives_nothing() -> None:
    assert decide_network(ConfinementWish(network="galaxy"), "", BackendNetwork.ANY) is BackendNetwork.NONE
    assert decide_network(ConfinementWish(), "galaxy", BackendNetwork.LOOPBACK) is BackendNetwork.LOOPBACK


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 2**31 - 1), st.integers(1, 1000))
def test_a_backend_always_has_the_same_user_of_the_range(backend: str, owner: str, first: int, size: int) -> None:
    users = range(first, first + size)
    assert user_of(backend, owner, users) == user_of(backend, owner, users)
    assert user_of(backend, owner, users) in users


def test_variables_pass_by_list_and_secrets_never_by_a_pattern() -> None:
    worker = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": "x",
        "HF_HUB_TOKEN": "x",
        "HF_ENDPOINT": "https://hub.example",
        "HUGGINGFACE_HUB_CACHE": "/cache",
        "TOKENIZERS_PARALLELISM": "false",
        "https_proxy": "http://proxy:3128",
        "HTTP_PROXY": "http://me:word@proxy:3128",
        "LOCALAI_REGISTRATION_TOKEN": "x",
        "DATABASE_URL": "x",
        "MY_FLAG": "1",
        "MY_TOKEN": "x",
    }
    usual = {"PATH", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "https_proxy"}
    usual |= {"HF_ENDPOINT", "HUGGINGFACE_HUB_CACHE"}

    assert inherited(worker).keys() == usual
    assert inherited(worker, ["MY_*"]).keys() == usual | {"MY_FLAG"}
    assert inherited(worker, ["MY_*", "MY_TOKEN"]).keys() == usual | {"MY_FLAG", "MY_TOKEN"}


@given(version=st.integers(1, 12), network=NETWORKS, kept=st.booleans())
def test_no_version_of_landlock_is_asked_for_rights_that_it_does_not_know(
    version: int, network: BackendNetwork, kept: bool
) -> None:
    files = FileAccess(read=["/a"], run=["/b"], write=["/c"], devices=["/d"])
    rules = ruleset(version, files, PortAccess(network=network, own=[5, 6], keeps_addresses=kept))

    known = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    assert rules["paths"] == (1 << known) - 1
    assert all(rights & ~rules["paths"] == 0 and rights for _, rights in rules["path_rules"])
    assert all(rights & ~rules["ports"] == 0 and rights for _, rights in rules["port_rules"])
    assert (rules["size"], bool(rules["scopes"])) == (8 if version < 4 else 16 if version < 6 else 24, version >= 6)
    if version < 4 or network is BackendNetwork.ANY:
        assert rules["ports"] == 0
    else:
        assert {port for port, _ in rules["port_rules"]} - {0} == {5, 6}


def decision(code: bytes, number: int, *arguments: int, audit: int = X86.audit) -> int:
    """Run the filter as the kernel does; the error that it answers with."""
    data = struct.pack("=iIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", code))
    place, value = 0, 0
    while True:
        operation, then, otherwise, constant = steps[place]
        place += 1
        match operation:
            case 0x20:
                value = struct.unpack_from("=I", data, constant)[0]
            case 0x54:
                value &= constant
            case 0x15 | 0x35 | 0x45:
                is_so = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[operation]
                place += then if is_so else otherwise
            case 0x06:
                return ALLOW if constant == 0x7FFF0000 else constant & 0xFFFF
            case _:
                raise AssertionError(hex(operation))


def filter_for(network: BackendNetwork, *, sees_ports: bool = True, shares_user: bool = False) -> bytes:
    code = call_filter("x86_64", network, sees_ports=sees_ports, shares_user=shares_user)
    assert code is not None
    return code


@pytest.mark.parametrize("network", BackendNetwork)
def test_the_filter_refuses_what_leads_out_and_nothing_else(network: BackendNetwork) -> None:
    code = filter_for(network)
    for number in X86.refused:
        assert decision(code, number) == EPERM
    for number in X86.absent:
        assert decision(code, number) == ENOSYS
    assert decision(code, 56, 0x10000000) == EPERM, "a user namespace"
    assert decision(code, 56, 0x3D0F00) == ALLOW, "a thread"
    assert decision(code, 0) == decision(code, 59) == decision(code, 42) == ALLOW, "read, execve, connect"
    assert decision(code, 0x40000000) == EPERM, "another kind of calls"
    assert decision(code, 0, audit=0x40000003) == EPERM, "another processor's calls"


@pytest.mark.parametrize("network", [BackendNetwork.NONE, BackendNetwork.LOOPBACK])
def test_restricted_networks_have_plain_tcp_sockets_only(network: BackendNetwork) -> None:
    code = filter_for(network)
    close_on_exec = 0o2000000
    assert decision(code, 41, 16, 3) == decision(code, 53, 1, 1) == ALLOW, "the kernel's answers, and pairs"
    with_path = EAFNOSUPPORT if network is BackendNetwork.NONE else ALLOW
    assert decision(code, 41, 1, 1) == decision(code, 41, 1, 2) == with_path, "services of the same user"
    assert decision(code, 41, 2, 1 | close_on_exec, 0) == decision(code, 41, 10, 1, 6) == ALLOW, "TCP"
    assert decision(code, 41, 2, 2) == decision(code, 41, 10, 2) == EACCES, "datagrams"
    assert decision(code, 41, 2, 3) == decision(code, 41, 2, 1, 262) == EACCES, "raw, MPTCP"
    assert decision(code, 41, 40, 1) == decision(code, 41, 17, 3) == EAFNOSUPPORT, "machines of the host, packets"
    for number, place in X86.sending.items():
        flags = [0] * 4
        assert decision(code, number, *flags) == ALLOW
        flags[place] = 0x20000000
        assert decision(code, number, *flags) == EPERM


def test_without_rules_for_ports_the_network_none_refuses_every_connection() -> None:
    assert decision(filter_for(BackendNetwork.NONE, sees_ports=False), X86.connect) == EACCES
    assert decision(filter_for(BackendNetwork.LOOPBACK, sees_ports=False), X86.connect) == ALLOW
    assert decision(filter_for(BackendNetwork.ANY), 41, 2, 2) == ALLOW


def test_limits_are_set_for_the_caller_alone() -> None:
    code = filter_for(BackendNetwork.ANY)
    assert decision(code, X86.limit, 0, 7, 1) == ALLOW
    assert decision(code, X86.limit, 4711, 7, 1) == EPERM


def test_a_backend_with_the_user_of_its_worker_changes_no_mode_that_matters() -> None:
    code, alone = filter_for(BackendNetwork.ANY, shares_user=True), filter_for(BackendNetwork.ANY)
    chmod, fchmod, fchmodat, fchmodat2, setxattr = 90, 91, 268, 452, 188
    seems_done = 0
    for mode in (0, 0o600, 0o644, 0o777, 0o4755, 0o2700, 0o755):
        assert decision(code, chmod, 1, mode) == decision(code, fchmodat, 1, 1, mode) == seems_done
    for mode in (0, 0o644, 0o777, 0o4755):
        assert decision(code, fchmod, 3, mode) == seems_done
    assert decision(code, chmod, 1, 0o100700) == decision(code, fchmodat, 1, 1, 0o700) == ALLOW
    assert decision(code, fchmod, 3, 0o700) == decision(code, fchmod, 3, 0o100755) == ALLOW
    assert (decision(code, fchmodat2, 1, 1, 0), decision(code, setxattr)) == (ENOSYS, ENOTSUP)
    for number in (chmod, fchmod, fchmodat, fchmodat2, setxattr):
        assert decision(alone, number, 1, 1, 1) == ALLOW, "it owns nothing that others use"


def test_a_processor_without_numbers_has_no_filter() -> None:
    assert call_filter("riscv64", BackendNetwork.NONE, sees_ports=True, shares_user=True) is None


def lets_pass(code: bytes, context: bytes) -> bool:
    """Run a program for the cgroup as the kernel does."""
    registers = [0] * 11
    place = 0
    while True:
        operation, names, offset, value = struct.unpack_from("<BBhi", code, 8 * place)
        place += 1
        name = names & 15
        match operation:
            case 0x61:
                registers[name] = struct.unpack_from("<I", context, offset)[0]
            case 0x57:
                registers[name] &= value
            case 0x16 | 0x56:
                is_same = registers[name] & 0xFFFFFFFF == value & 0xFFFFFFFF
                place += offset if is_same == (operation == 0x16) else 0
            case 0xB7:
                registers[name] = value
            case 0x95:
                return bool(registers[0])
            case _:
                raise AssertionError(hex(operation))


@given(st.ip_addresses(v=4))
def test_only_the_loopback_network_passes(address: object) -> None:
    packed = address.packed  # type: ignore[attr-defined]
    expected = packed[0] == 127 or packed == bytes(4)
    assert lets_pass(LOOPBACK_4, bytes(4) + packed) == expected
    mapped = bytes(10) + b"\xff\xff" + packed
    assert lets_pass(LOOPBACK_6, bytes(8) + mapped) == (packed[0] == 127)


@given(st.ip_addresses(v=6))
def test_of_ipv6_only_one_address_passes(address: object) -> None:
    packed = address.packed  # type: ignore[attr-defined]
    if packed[:12] != bytes(10) + b"\xff\xff":
        assert lets_pass(LOOPBACK_6, bytes(8) + packed) == (int.from_bytes(packed) <= 1)
    for passing in (bytes(16), bytes(15) + b"\1"):
        assert lets_pass(LOOPBACK_6, bytes(8) + passing)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A /proc of a machine with version 2 and the memory controller of version 1."""
    unified, memory = tmp_path / "unified dir" / "own", tmp_path / "memory"
    unified.mkdir(parents=True)
    memory.mkdir()
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    proc.joinpath("cgroup").write_text("4:memory:/elsewhere\n3:cpu,cpuacct:/\n0::/own\n")
    shown = str(unified.parent).replace(" ", "\\040")
    proc.joinpath("mounts").write_text(f"c2 {shown} cgroup2 rw 0 0\nc1 {memory} cgroup rw,memory 0 0\n")
    return tmp_path


def test_groups_are_made_where_the_worker_is(machine: Path) -> None:
    parents = find_parents(proc=machine / "proc")

    assert parents.unified == machine / "unified dir" / "own"
    assert parents.separate == {"memory": machine / "memory"}, "in a container the mount is the group"
    assert parents.version == "v2"


def test_a_group_without_controllers_limits_nothing_and_is_removed(machine: Path) -> None:
    parents = find_parents(proc=machine / "proc")
    group = make_group(parents, "w-1", limits={"memory": 5, "pids": 6})

    assert group.limits == frozenset(), "no files of controllers are there"
    assert [Path(file).parent.name for file in group.task_files] == ["corral-backend-w-1"] * 2
    assert group.end() == group.end() == 0
    make_group(parents, "w-2", limits={})
    assert end_left_groups(parents, "w") == 0
    assert not list((machine / "unified dir" / "own").iterdir())


def test_a_machine_that_gives_nothing_is_told_with_what_to_do() -> None:
    bare = report(Abilities(is_root=False))
    assert (bare.landlock, bare.own_users, bare.cgroup, bare.loopback, bare.limits) == (0, False, "", "", [])
    assert len(bare.missing) == 7
    assert "Linux 5.13" in bare.missing[0]

    closed = report(Abilities(is_root=True, has_users=True), closed="/root")
    assert not closed.own_users
    assert any("/root is closed to other users, so backends run as root" in sentence for sentence in closed.missing)


@pytest.mark.parametrize(("landlock", "has_filters"), [(0, False), (7, False), (7, True)])
def test_services_of_the_same_user_are_told_where_nothing_keeps_them(landlock: int, has_filters: bool) -> None:
    ordinary = Abilities(is_root=False, landlock=landlock, has_filters=has_filters)
    (told,) = [sentence for sentence in report(ordinary).missing if "sockets with a path" in sentence]
    assert ("unless its network is none" in told) == has_filters
    root = replace(ordinary, is_root=True, has_users=True)
    assert not any("sockets with a path" in sentence for sentence in report(root).missing)


def test_rights_that_a_container_lacks_are_told() -> None:
    whole = Abilities(is_root=True, has_users=True, landlock=7, capabilities=frozenset({2}), drops_bounding=True)
    assert not any("CAP_" in sentence for sentence in report(whole).missing)
    assert any("CAP_SETPCAP" in sentence for sentence in report(replace(whole, drops_bounding=False)).missing)
    assert any("CAP_CHOWN" in sentence for sentence in report(replace(whole, has_users=False)).missing)

    closed = report(whole, closed="/root")
    assert closed.own_users
    assert any("/root is closed" in sentence and "CAP_DAC_READ_SEARCH" in sentence for sentence in closed.missing)
    lacking = report(replace(whole, capabilities=frozenset()), closed="/root")
    assert not lacking.own_users
    assert any("so backends run as root" in sentence for sentence in lacking.missing)


@pytest.mark.parametrize("place", ["opt/data", "opt/corral/worker", "opt/corral/fleet/worker"])
def test_of_a_system_directory_around_the_workers_only_what_is_beside_it_is_given(tmp_path: Path, place: str) -> None:
    data = tmp_path / place
    for folder in (data, tmp_path / "opt" / "cuda", tmp_path / "opt" / "corral" / "venv"):
        folder.mkdir(parents=True, exist_ok=True)
    (data.parent / "secrets.key").touch()
    (tmp_path / "opt" / "way").symlink_to(data.parent)
    given = list(around_data(tmp_path / "opt", data))

    assert tmp_path / "opt" / "cuda" in given
    assert not any(holds(path, data) for path in given)
    assert (data.parent / "secrets.key" in given) == (data.parent == tmp_path / "opt")
    assert (tmp_path / "opt" / "corral" / "venv" in given) == (place == "opt/corral/fleet/worker")
    assert list(around_data(data / "models", data)) == [data / "models"]


def test_an_interpreter_gives_neither_the_whole_disk_nor_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    data = tmp_path / ".local" / "share" / "corral"
    own = tmp_path / ".local" / "share" / "uv" / "python"
    venv = tmp_path / "venv"
    for folder in (data, own, venv):
        folder.mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()

    assert runtime_parts(own, data) == [own]
    assert runtime_parts(venv, data) == [venv]
    for prefix in (Path("/"), tmp_path, tmp_path / ".local", tmp_path / ".local" / "share"):
        for place in (data, Path("/elsewhere")):
            given = runtime_parts(prefix, place)
            if place == data or prefix != tmp_path / ".local" / "share":
                assert prefix / "bin" in given
                assert prefix not in given
                assert not any(holds(path, data) for path in given)


def test_settings_that_lead_to_the_workers_files_are_left_out_and_told(tmp_path: Path) -> None:
    places = BackendPlaces(data=tmp_path / "data", models=[])
    config = ConfinementConfig(read_paths=(tmp_path, tmp_path / "fonts"), write_paths=(Path("/"),))
    first, second = left_out(places, config)
    assert first.startswith(f"{tmp_path} of backend_read_paths")
    assert second.startswith("/ of backend_write_paths")


def test_the_first_directory_that_others_cannot_enter_is_named(tmp_path: Path) -> None:
    tmp_path.joinpath("open", "closed", "deep").mkdir(parents=True)
    (tmp_path / "open" / "closed").chmod(0o700)
    found = closed_to_others([Path("/"), tmp_path / "open" / "closed" / "deep"])
    assert found
    assert os.path.commonpath([found, tmp_path]) in {found, str(tmp_path)}


@pytest.fixture
def places(tmp_path: Path) -> BackendPlaces:
    home = tmp_path / "data" / "backends" / "echo"
    home.mkdir(parents=True)
    (home / "run.sh").write_text("#!/bin/sh\n")
    (home / "run.sh").chmod(0o700)
    (tmp_path / "data" / "models").mkdir()
    (tmp_path / "data").chmod(0o700)
    return BackendPlaces(data=tmp_path / "data", models=[tmp_path / "data" / "models"], runtimes=[])


def launch_of(confiner: Confiner, places: BackendPlaces, mark: str, **more: Any) -> Launch:
    executable = places.data / "backends" / "echo" / "run.sh"
    home = Home(name="echo", executable=executable, names=frozenset({"echo"}), shared_names=frozenset({"speech"}))
    return Launch(
        key=ProcessKey("m", 0),
        backend="echo",
        home=home,
        model_id="m",
        bind_host="127.0.0.1",
        port=1,
        http_port=None,
        token="",
        http_key="",
        mark=mark,
        environment={},
        scratch=confiner.scratch_of(mark),
        **more,
    )


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root gives backends users of their own")
async def test_an_exempted_backend_does_not_shut_confined_ones_out_of_their_directories(places: BackendPlaces) -> None:
    confiner = Confiner(ConfinementConfig(), places=places, abilities=look(1_900_000_000))
    confined = launch_of(confiner, places, "confined")
    exempted = launch_of(confiner, places, "exempted", wish=ConfinementWish(is_off=True))

    async with confiner.around(confined) as order:
        assert order is not None
        user = json.loads(order)["user"]
        assert user["uid"] in range(1_900_000_000, 2_000_000_000)
        async with confiner.around(exempted):
            assert confined.scratch is not None
            assert closed_to_others([confined.scratch], worker_folder=None) == closed_to_others([places.data.parent])
            assert exempted.scratch is not None
            assert exempted.scratch.stat().st_mode & 0o777 == 0o700
    assert list(places.scratch.iterdir()) == []
    executable = confined.home.executable
    assert executable.stat().st_mode & 0o777 == 0o705, "its own user can run it, whatever modes its image has"


async def test_a_start_that_is_cancelled_leaves_neither_directory_nor_cgroup(
    places: BackendPlaces, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = find_parents(proc=machine / "proc")
    confiner = Confiner(ConfinementConfig(), places=places, abilities=Abilities(is_root=False, groups=parents))
    launch = launch_of(confiner, places, "mark")
    reached, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    make = Confiner._make_scratch

    def slow(self: Confiner, *args: Any) -> None:
        loop.call_soon_threadsafe(reached.set)
        goes_on.wait(30)
        make(self, *args)

    monkeypatch.setattr(Confiner, "_make_scratch", slow)

    async def live() -> None:
        async with confiner.around(launch):
            raise AssertionError("it was cancelled before")

    life = asyncio.create_task(live())
    await reached.wait()
    assert parents.unified is not None
    assert list(parents.unified.iterdir())
    for _ in range(3):
        life.cancel()
        await asyncio.sleep(0)  # the impatient one is heard
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await life

    assert not list(parents.unified.iterdir())
    assert not list(places.scratch.iterdir())


@pytest.mark.parametrize(
    ("wish", "network"),
    [
        (ConfinementWish(), "any"),
        (ConfinementWish(most={"other": "none"}), "any"),
        (ConfinementWish(most={"speech": "loopback"}), "loopback"),
        (ConfinementWish(network="any", most={"speech": "none"}), "none"),
        (ConfinementWish(network="none", most={"speech": "any"}), "none"),
        (ConfinementWish(is_off=True, most={"speech": "loopback"}), "loopback"),
        (ConfinementWish(most={"speech": "galaxy"}), "none"),
    ],
)
def test_the_strictest_decision_for_any_name_of_a_program_counts(
    places: BackendPlaces, wish: ConfinementWish, network: str
) -> None:
    confiner = Confiner(ConfinementConfig(), places=places, abilities=Abilities(is_root=False))
    launch = launch_of(confiner, places, "mark", wish=wish)
    assert confiner.network_of(launch) == network
    assert confiner._is_confined(launch)


def test_files_that_inherited_variables_name_may_be_read(places: BackendPlaces, tmp_path: Path) -> None:
    authority, modules = tmp_path / "ca.pem", tmp_path / "modules"
    authority.touch()
    modules.mkdir()
    (tmp_path / "link.pem").symlink_to(authority)
    confiner = Confiner(ConfinementConfig(), places=places, abilities=Abilities(is_root=False))
    environment = {
        "PYTHONPATH": f"{modules}:relative:{places.data}",
        "SSL_CERT_FILE": str(tmp_path / "link.pem"),
        "REQUESTS_CA_BUNDLE": str(tmp_path / "bundle.pem"),
        "CURL_CA_BUNDLE": str(tmp_path / "curl.pem"),
    }
    launch = replace(launch_of(confiner, places, "mark"), environment=environment)
    given = granted_files(launch, places=places, config=ConfinementConfig())

    names = ("modules", "link.pem", "ca.pem", "bundle.pem", "curl.pem")
    assert {str(tmp_path / name) for name in names} <= set(given.read)
    assert not any(holds(Path(path), places.data) for path in given.read)
    assert not {str(authority), str(modules)} & {*given.run, *given.write}


@pytest.mark.parametrize("is_placed", [True, False])
def test_links_of_a_backend_that_was_placed_by_hand_lead_to_what_it_may_run(
    places: BackendPlaces, tmp_path: Path, is_placed: bool
) -> None:
    engine, common = tmp_path / "engine", places.data / "backends" / "common"
    engine.touch()
    common.mkdir()
    (places.data / "node-secret").touch()
    home = places.data / "backends" / "echo"
    (home / "engine").symlink_to(engine)
    (home / "common").symlink_to("../common")
    (home / "secret").symlink_to("../../node-secret")
    (home / "all").symlink_to(tmp_path)
    (home / "backends").symlink_to("..")
    confiner = Confiner(ConfinementConfig(), places=places, abilities=Abilities(is_root=False))
    launch = launch_of(confiner, places, "mark")
    launch = replace(launch, home=replace(launch.home, is_placed=is_placed))
    given = granted_files(launch, places=places, config=ConfinementConfig())

    assert {str(engine), str(common)} & set(given.run) == ({str(engine), str(common)} if is_placed else set())
    shut = {str(places.data / "node-secret"), str(tmp_path), str(places.data), str(places.data / "backends")}
    assert not shut & {*given.read, *given.run, *given.write}
    assert not {str(engine), str(common)} & set(given.write)


@pytest.mark.parametrize(
    ("present", "made"), [(["nvidiactl"], True), (["nvidiactl", "nvidia-uvm"], False), (["null"], False)]
)
def test_the_device_for_cuda_is_made_before_a_backend_would_need_it(
    tmp_path: Path, present: list[str], made: bool
) -> None:
    """A confined process cannot have it made: the program that does is set-uid."""
    dev, programs = tmp_path / "dev", tmp_path / "bin"
    for folder in (dev, programs):
        folder.mkdir()
    for name in present:
        (dev / name).touch()
    program = programs / "nvidia-modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" > {dev}/made\n')
    program.chmod(0o755)

    make_devices(dev, f"{programs}:{os.defpath}")

    assert (dev / "made").exists() is made
    assert not made or (dev / "made").read_text() == "-u -c 0\n"


def test_the_search_path_leads_to_what_a_backend_may_run(places: BackendPlaces, tmp_path: Path) -> None:
    """`python3` in a start script means that of the virtual environment in which the worker was started."""
    build = tmp_path / "pythons" / "3.11"
    for folder in (tmp_path / "venv/bin", build / "bin", places.data / "bin"):
        folder.mkdir(parents=True)
    (build / "bin/python3.11").touch()
    (tmp_path / "venv/bin/python3").symlink_to(build / "bin/python3.11")
    confiner = Confiner(ConfinementConfig(), places=places, abilities=Abilities(is_root=False))
    path = f"{tmp_path}/venv/bin:relative::/tmp:/:{Path.home()}:{places.data}/bin:/usr/bin"
    launch = replace(launch_of(confiner, places, "mark"), environment={"PATH": path})
    given = granted_files(launch, places=places, config=ConfinementConfig())

    assert {str(tmp_path / "venv/bin"), str(tmp_path / "venv"), str(build)} <= set(given.run)
    shut = {"/", "/tmp", str(Path.home()), str(places.data / "bin"), str(tmp_path)}
    assert not shut & {*given.read, *given.run, *given.write}


@pytest.mark.parametrize(
    ("origin", "is_trusted"), [({"is_placed": True}, True), ({"is_system": True}, True), ({}, False)]
)
def test_programs_that_the_start_script_of_a_placed_backend_names_may_be_run(
    places: BackendPlaces, tmp_path: Path, origin: dict[str, Any], is_trusted: bool
) -> None:
    """As on LocalAI's worker. An image does not choose what it may read."""
    tools, modules = tmp_path / "tools", tmp_path / "modules"
    for file in (tools / "venv/bin/python", tools / "engine", modules / "serve.py", tmp_path / "notes.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o755 if file.parent != tmp_path else 0o644)
    (places.data / "secret.py").touch()
    launch = launch_of(Confiner(ConfinementConfig(), places=places, abilities=Abilities(is_root=False)), places, "mark")
    launch.home.executable.write_text(
        f'#!/bin/sh\n{tools}/engine --check "{tmp_path}/notes.txt" {places.data}/secret.py /tmp ~{tools} $D{tools}\n'
        f'exec "{tools}/venv/bin/python" {modules}/serve.py "$@"\n'
    )
    launch = replace(launch, home=replace(launch.home, **origin))
    given = granted_files(launch, places=places, config=ConfinementConfig())

    named = {str(tools / "engine"), str(tools / "venv"), str(modules / "serve.py"), str(modules)}
    assert named & set(given.run) == (named if is_trusted else set())
    shut = {str(tmp_path / "notes.txt"), str(places.data / "secret.py"), str(places.data), str(tmp_path), "/tmp"}
    assert not shut & {*given.read, *given.run, *given.write}


@pytest.mark.parametrize(
    ("message", "denied"),
    [
        ("died during startup. Last stderr:\n./run.sh: line 3: /opt/x/main: Permission denied\n(exit code 1)", True),
        ("cannot run /b/run.sh: Permission denied", True),
        ("died during startup. Last stderr:\n(exit code 126)", True),
        ("died during startup. Last stderr:\n(exit code 127)", True),
        ("died during startup. Last stderr:\nout of memory\n(exit code 1)", False),
    ],
)
def test_a_start_that_may_have_failed_by_confinement_is_recognised(message: str, denied: bool) -> None:
    assert looks_denied(message) is denied
