"""The contract with backends: every name and number as the reference states it, and what LocalAI's binaries sent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict

from corral.rpc import messages
from corral.rpc._generated import backend_pb2

VECTORS = json.loads((Path(__file__).parent / "vectors" / "backend_contract.json").read_text(encoding="utf-8"))
FILE = backend_pb2.DESCRIPTOR
SERVICE = FILE.services_by_name["Backend"]


def type_name(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        return f"map<{simple_type(key)}, {simple_type(value)}>"
    if field.containing_oneof is not None and not field.containing_oneof.name.startswith("_"):
        return f"oneof {field.containing_oneof.name}: {simple_type(field)}"
    if field.is_repeated:
        return f"repeated {simple_type(field)}"
    return f"optional {simple_type(field)}" if field.containing_oneof is not None else simple_type(field)


def simple_type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.name)
    if field.enum_type is not None:
        return str(field.enum_type.name)
    kinds = {getattr(FieldDescriptor, name): name for name in dir(FieldDescriptor) if name.startswith("TYPE_")}
    return kinds[field.type].removeprefix("TYPE_").lower()


def described(message: Descriptor) -> dict[str, list[object]]:
    return {field.name: [field.number, type_name(field)] for field in message.fields}


def kind_of(method: MethodDescriptor) -> str:
    if method.client_streaming:
        return "bidi stream"
    return "server stream" if method.server_streaming else "unary"


@pytest.mark.parametrize("name", VECTORS["messages"])
def test_a_message_has_the_fields_of_the_contract(name: str) -> None:
    assert described(FILE.message_types_by_name[name]) == VECTORS["messages"][name]


def test_there_are_no_other_messages() -> None:
    assert set(FILE.message_types_by_name) == set(VECTORS["messages"])


def test_the_service_has_the_methods_of_the_contract() -> None:
    ours = {
        method.name: [
            kind_of(method),
            method.input_type.name,
            method.output_type.name,
            "ModelIdentity" in method.input_type.fields_by_name,
        ]
        for method in SERVICE.methods
    }
    assert SERVICE.full_name == "backend.Backend"
    assert ours == VECTORS["methods"]


@pytest.mark.parametrize("name", VECTORS["enums"])
def test_an_enum_has_the_values_of_the_contract(name: str) -> None:
    outer, _, inner = name.rpartition(".")
    enums = FILE.message_types_by_name[outer].enum_types_by_name if outer else FILE.enum_types_by_name
    assert {value.name: value.number for value in enums[inner].values} == VECTORS["enums"][name]


@pytest.mark.parametrize(("name", "numbers"), VECTORS["reserved"].items())
def test_numbers_that_are_gone_stay_gone(name: str, numbers: list[int]) -> None:
    source = (Path(__file__).parents[2] / "proto" / "backend.proto").read_text(encoding="utf-8")
    body = source.partition(f"message {name} {{")[2].partition("\n}")[0]
    for number in numbers:
        assert f"reserved {number};" in body
        assert number not in FILE.message_types_by_name[name].fields_by_number


def requests_in(golden: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for message in json.loads((golden / "grpc.json").read_text(encoding="utf-8"))["messages"]:
        if "rpc" in message:
            yield message["rpc"], message["request"]


def test_recorded_requests_survive_our_encoding(golden: Path) -> None:
    for path, request in requests_in(golden):
        service, _, name = path.lstrip("/").partition("/")
        assert service == SERVICE.full_name
        kind = getattr(backend_pb2, SERVICE.methods_by_name[name].input_type.name)
        encoded = ParseDict(request, kind()).SerializeToString()
        again = MessageToDict(kind.FromString(encoded), preserving_proto_field_name=True)
        assert again == pytest.approx(request) if name != "LoadModel" else again == request


def test_what_localai_sends_to_load_a_model_is_understood_byte_by_byte() -> None:
    """Written out by hand: field 1 `m.bin`, field 2 512, field 12 99999999, field 54 of the prediction."""
    options = messages.ModelOptions.FromString(b"\x0a\x05m.bin" + b"\x10\x80\x04" + b"\x60\xff\xc1\xd7\x2f")
    assert (options.Model, options.ContextSize, options.NGPULayers) == ("m.bin", 512, 99_999_999)
    prediction = messages.PredictOptions.FromString(b"\xb2\x03\x05m.bin" + b"\x20\x07")
    assert (prediction.ModelIdentity, prediction.Tokens) == ("m.bin", 7)
