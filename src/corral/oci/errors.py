"""How fetching and unpacking an image may fail.

ImageError
├── SourceInvalid           the uri or the reference cannot be understood
├── ImageNotFound           404: no such repository, tag or digest
├── RegistryRefused         401, 403: who asks may not have it
├── RegistryUnavailable     retryable: 429, 5xx, no connection, too slow
├── ContentMismatch         retryable: what came is not what was announced
├── ManifestUnusable        not an image that can be unpacked
│   └── PlatformMissing     an index without an image for this machine
├── SignatureRefused        nobody signed it whom the gallery's policy asks for
│   └── SignatureMissing    nobody signed it at all
├── PolicyInvalid           the gallery's policy about signatures cannot be used
├── IntegrityRequired       nothing shows what it must be, and the settings ask for that
├── TrustUnavailable        retryable: the trust root for signatures cannot be read
├── UnpackRefused           the content would do harm
│   └── LimitExceeded       the content is larger than a limit allows
├── DiskFull                retryable: somebody may make room
├── TargetUnusable          the place to unpack to cannot be used
├── PullCancelled           somebody ended it
└── PullerDied              retryable: the child process ended without a word
"""

from corral.base.errors import CorralError, error_with_code


class ImageError(CorralError):
    """The image cannot be had."""

    code = "image_error"


class SourceInvalid(ImageError):
    """The source of the image cannot be understood."""

    code = "image_source_invalid"


class ImageNotFound(ImageError):
    """There is no such image."""

    code = "image_not_found"


class RegistryRefused(ImageError):
    """The registry refuses the request."""

    code = "registry_refused"


class RegistryUnavailable(ImageError):
    """The registry does not answer as it should."""

    code = "registry_unavailable"
    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        """Seconds that the registry asked us to wait."""
        super().__init__(message)


class ContentMismatch(ImageError):
    """What came is not what was announced."""

    code = "image_content_mismatch"
    retryable = True


class ManifestUnusable(ImageError):
    """This is not an image that can be unpacked."""

    code = "image_unusable"


class PlatformMissing(ManifestUnusable):
    """There is no image for this machine."""

    code = "image_platform_missing"


class SignatureRefused(ImageError):
    """The image has no signature that the policy of its gallery accepts."""

    code = "signature_refused"


class SignatureMissing(SignatureRefused):
    """The image is not signed."""

    code = "signature_missing"


class PolicyInvalid(ImageError):
    """The policy about signatures cannot be used."""

    code = "signature_policy_invalid"


class IntegrityRequired(ImageError):
    """Nothing shows that the image is what it should be."""

    code = "integrity_required"


class TrustUnavailable(ImageError):
    """The trust root for signatures cannot be read."""

    code = "trust_unavailable"
    retryable = True


class UnpackRefused(ImageError):
    """The image holds something that is not unpacked."""

    code = "unpack_refused"


class LimitExceeded(UnpackRefused):
    """The image is larger than a limit allows."""

    code = "unpack_limit"


class DiskFull(ImageError):
    """There is too little room on the disk."""

    code = "disk_full"
    retryable = True


class TargetUnusable(ImageError):
    """The place to unpack to cannot be used."""

    code = "unpack_target"


class PullCancelled(ImageError):
    """The pull was cancelled before it was complete."""

    code = "pull_cancelled"


class PullerDied(ImageError):
    """The process that pulls ended without a word."""

    code = "puller_died"
    retryable = True


def error_with(code: str, message: str) -> ImageError:
    """Return the error of this code, as another process reported it; the general one for an unknown code."""
    return error_with_code(ImageError, code, message)
