"""Apple's chips."""

from corral.worker.hardware.gpus import Apple, MeasuredGpu, Vendor

M2 = {"hw.optional.arm64": "1", "machdep.cpu.brand_string": "Apple M2 Max"}
INTEL = {"machdep.cpu.brand_string": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz"}


def find(values: dict[str, str], *, system: str = "darwin") -> list[MeasuredGpu]:
    return Apple(system=system, sysctl=lambda name: values.get(name, "")).find()


def test_a_mac_with_apples_chip_has_a_gpu_that_shares_its_memory() -> None:
    assert find(M2) == [MeasuredGpu(vendor=Vendor.APPLE, id="apple-0", name="Apple M2 Max", shares_ram=True)]


def test_a_mac_with_intels_processor_has_none() -> None:
    assert find(INTEL) == []


def test_elsewhere_nobody_asks() -> None:
    assert Apple(system="linux", sysctl=lambda name: 1 / 0).find() == []


def test_it_is_asked_once() -> None:
    asked: list[str] = []

    def sysctl(name: str) -> str:
        asked.append(name)
        return M2[name]

    apple = Apple(system="darwin", sysctl=sysctl)
    assert apple.find() == apple.find()
    assert asked == ["hw.optional.arm64", "machdep.cpu.brand_string"]
