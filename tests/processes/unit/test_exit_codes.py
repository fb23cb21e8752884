"""Which number a process ends with, and which error it is when several come together."""

import pytest

from corral.base import errors
from corral.base.errors import DataInUse
from corral.processes.exit_codes import NOT_WORTH_A_RESTART, ExitCode, exit_code_of, sole_cause


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SettingInvalid("port", "is wrong"), 64),
        (errors.PathNotUsable("x"), 73),
        (errors.AddressInUse("x"), 75),
        (errors.DatabaseInUse("x"), 75),
        (DataInUse("x"), 75),
        (errors.AccessDenied("x"), 77),
        (errors.PeerRefused("x", status=401), 77),
        (errors.PeerRefused("x", status=403), 77),
        (errors.PeerRefused("x", status=400), 1),
        (errors.SecretsKeyMismatch("x"), 78),
        (errors.SchemaTooNew("x"), 78),
        (errors.DatabaseUnavailable("x"), 69),
        (errors.NoResponders("x"), 69),
        (errors.PeerUnavailable("x"), 69),
        (errors.NotFound("x"), 1),
        (errors.Conflict("x"), 1),
    ],
)
def test_every_error_has_its_code(error: errors.CorralError, code: int) -> None:
    assert exit_code_of(error) == code


def test_what_may_pass_by_itself_is_worth_a_restart() -> None:
    assert ExitCode.UNAVAILABLE not in NOT_WORTH_A_RESTART
    assert ExitCode.INTERNAL not in NOT_WORTH_A_RESTART


class TestSoleCause:
    def test_is_found_however_deep_it_lies(self) -> None:
        cause = errors.AddressInUse("x")
        assert sole_cause(ExceptionGroup("a", [ExceptionGroup("b", [cause])])) is cause

    def test_the_first_of_several_is_told(self) -> None:
        first, second = errors.AddressInUse("x"), errors.PathNotUsable("y")
        assert sole_cause(ExceptionGroup("a", [first, second])) is first

    def test_a_programming_error_is_not_hidden(self) -> None:
        group = ExceptionGroup("a", [errors.AddressInUse("x"), ValueError("y")])
        with pytest.raises(ExceptionGroup) as raised:
            sole_cause(group)
        assert raised.value is group
