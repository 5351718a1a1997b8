"""The errors a user can meet. Each message says what is wrong, in which file, and what to do about it."""


class OxinferError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(OxinferError):
    """config.json describes a model that this version does not run."""


class CheckpointError(OxinferError):
    """A checkpoint file is missing, damaged, or not what the index or the config says it is."""


class HostError(OxinferError):
    """The host of the files did not give the bytes asked for (no ranges, a missing file, a short answer)."""


class KernelError(OxinferError):
    """The kernels cannot run here (no WASM SIMD, no memory left, a missing build)."""


class SessionError(OxinferError):
    """A session was asked for something its state does not allow (too long a context, a bad position)."""


class CancelledError(OxinferError):
    """Nobody wants the rest any more: what is being waited for was given up."""
