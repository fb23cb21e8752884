"""Which variables of the worker's environment a backend inherits: those on a list. Pure."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

PASSED: Final = (
    # The system.
    "PATH",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "LD_LIBRARY_PATH",
    "DYLD_*",
    "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "[Hh][Tt][Tt][Pp]_[Pp][Rr][Oo][Xx][Yy]",
    "[Hh][Tt][Tt][Pp][Ss]_[Pp][Rr][Oo][Xx][Yy]",
    "[Aa][Ll][Ll]_[Pp][Rr][Oo][Xx][Yy]",
    "[Nn][Oo]_[Pp][Rr][Oo][Xx][Yy]",
    # How backends start, Corral's and LocalAI's.
    "CORRAL_BACKEND_*",
    "CORRAL_WORKER_PYTHON",
    "LOCALAI_BACKEND_PARENT_WATCH*",
    "PYTHON*",
    "GRPC_*",
    "DEBUG",
    # GPUs and what computes on them.
    "CUDA*",
    "NVIDIA_*",
    "NCCL_*",
    "ROC*",
    "HIP_*",
    "HSA_*",
    "GPU_*",
    "AMD_*",
    "MIOPEN_*",
    "ONEAPI_*",
    "SYCL_*",
    "ZE_*",
    "ZES_*",
    "NEOReadDebugKeys",
    "VK_*",
    "XPU*",
    "GGML_*",
    "LLAMA*",
    "OMP_*",
    "GOMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "ORT_*",
    "TORCH*",
    "PYTORCH_*",
    "TRITON_*",
    "VLLM_*",
    "SGLANG_*",
    "MAX_JOBS",
    "NVCC_*",
    "TRANSFORMERS_*",
    "HF_HOME",
    "HF_HUB_*",
    "HF_ENDPOINT",
    "HUGGINGFACE_HUB_CACHE",
    "TOKENIZERS_PARALLELISM",
    "TF_*",
    "XLA_*",
    "JAX_*",
    "MLX_*",
    "ESPEAK_*",
)
"""Patterns of names that pass, unless a name looks like a secret's."""

_SECRET_WORDS: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY")
_TOKENS_FOR_DOWNLOADS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_HARMLESS: Final = ("TOKENIZER",)


def inherited(environment: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that backends inherit: those on the list, and those that the names in `more` add.

    A name that contains the word for a secret is passed on only when `more` has it without a wildcard, and so is the
    address of a proxy with a password.
    """
    exact = frozenset(more)
    patterns = (*PASSED, *exact)
    return {
        name: value
        for name, value in environment.items()
        if name in exact
        or (any(fnmatchcase(name, pattern) for pattern in patterns) and not _looks_secret(name) and "@" not in value)
    }


def withheld(environment: Mapping[str, str], passed: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tokens of an environment that engines use for downloads, and that are not among what they get."""
    return tuple(name for name in _TOKENS_FOR_DOWNLOADS if environment.get(name) and name not in passed)


def _looks_secret(name: str) -> bool:
    word = name.upper()
    for harmless in _HARMLESS:
        word = word.replace(harmless, "")
    return any(secret in word for secret in _SECRET_WORDS)
