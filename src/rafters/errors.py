"""The one error family. Every message names the op, the argument, what was got and what was wanted."""


class RaftersError(RuntimeError):
    """Base of every error that Rafters raises on purpose."""


class BodyError(RaftersError):
    """The body of an op uses something that cannot be compiled, traced or declared; names the file and the line."""


class ArgumentError(RaftersError):
    """An argument of a call has a shape, dtype, device, layout or overlap that the op does not take."""


class CompileError(RaftersError):
    """A kernel could not be compiled, or would have to be compiled where that is not allowed."""


class MeasureError(RaftersError):
    """A measurement could not be made, or what it gave cannot be true."""


def argument_error(op: str, argument: str, got: object, wanted: str) -> ArgumentError:
    """The one sentence of every refused argument."""
    return ArgumentError(f"{op}: argument {argument!r}: got {got}, wanted {wanted}")
