"""What ended a process, taken out of the groups that task groups wrap it in."""

from collections.abc import Iterator

from corral.base.errors import CorralError


def sole_cause(group: BaseExceptionGroup[BaseException]) -> CorralError:
    """The error of ours that ended a service; several are told as the first. Anything else is raised as it came."""
    causes = list(_leaves(group))
    ours = [cause for cause in causes if isinstance(cause, CorralError)]
    if len(ours) != len(causes):
        raise group
    return ours[0]


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
