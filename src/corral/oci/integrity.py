"""Whether something shows what a source must hold: a signature, a digest or a hash. Decides, and fetches nothing."""

from collections.abc import Sequence

from corral.oci.errors import IntegrityRequired, SourceInvalid
from corral.oci.limits import INTEGRITY_KNOB
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, RegistryImage, parse_source


def judge_sources(sources: Sequence[str], *, has_policy: bool, sha256: str, is_required: bool) -> tuple[str, ...]:
    """Sentences about sources of which nothing shows what they hold; IntegrityRequired where that is not allowed."""
    gaps = [gap for uri in sources if (gap := _gap(uri, has_policy=has_policy, sha256=sha256))]
    if gaps and is_required:
        raise IntegrityRequired(f"{gaps[0]}, and {INTEGRITY_KNOB} asks for that")
    return tuple(f"{gap}; whatever comes is installed unless {INTEGRITY_KNOB} is set" for gap in gaps)


def _gap(uri: str, *, has_policy: bool, sha256: str) -> str:
    """What is missing; empty for what is covered, and for what is on this machine as a directory."""
    try:
        source = parse_source(uri)
    except SourceInvalid:
        return ""  # the puller will say so
    match source:
        case RegistryImage(reference=reference):
            if has_policy or reference.digest:
                return ""
            return f"{uri}: its gallery has no `verification`, and the uri no digest: nothing shows who made the image"
        case ImageFile():
            return "" if has_policy else f"{uri}: an image in a file has no signature: nothing shows who made it"
        case ArchiveUrl():
            is_directory = False
        case LocalSource(path=path):
            is_directory = path.is_dir()
    if is_directory or sha256:
        return ""
    return f"{uri}: its entry has no `sha256`: nothing shows what the archive must hold"
