"""Every error that a user can cause: one line that says what was given, the rule, the remedy."""


class ShardwiseError(Exception):
    """Base of all errors that shardwise raises on purpose; the message is one line."""


class InvalidValueError(ShardwiseError, ValueError):
    """A value breaks an invariant that its class states."""


class ParseError(ShardwiseError, ValueError):
    """A text form does not parse back into a value."""


class FileFormatError(ShardwiseError, ValueError):
    """A file is truncated, of another version, or has unknown or wrong keys; names the path in
    it."""


class MismatchError(ShardwiseError):
    """A plan, a checkpoint or a profile was made for something else; names what differs."""


class InfeasibleError(ShardwiseError):
    """No strategy fits; names the row, the exact shortfall in bytes and the nearest fixes."""


class UntraceableModelError(ShardwiseError):
    """A model cannot be traced; names the module and the source line."""


class UnsupportedError(ShardwiseError):
    """A legal request that this version cannot serve; names what would serve it."""
