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
    """A session was asked for something its state does not allow (a token that is none, a bad position)."""


class ContextError(SessionError):
    """A prompt that has no tokens, or more than there is room for. What can be done depends on where one is."""

    def __init__(self, message: str, tokens: int = 0, limit: int = 0) -> None:
        """tokens: positions the session would have had; limit: those it may have, `max_context`."""
        super().__init__(message)
        self.tokens, self.limit = tokens, limit


class NumericError(OxinferError):
    """The model's result is not a number: a weight is damaged, or activations grow beyond what floats hold."""

    def __init__(
        self,
        message: str = "the model's result is not a number (NaN or infinity): its files, or those it was converted "
        "from, are damaged; download or convert the model again",
    ) -> None:
        """The message says it all but where nothing else is known."""
        super().__init__(message)


class CancelledError(OxinferError):
    """Nobody wants the rest any more: what is being waited for was given up."""
