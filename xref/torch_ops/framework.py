"""The older names of `arrays`, `modes` and `memory`, in one module."""

from xref.torch_ops.arrays import (
    CONCURRENT,
    NAME,
    accumulator,
    bits_of,
    describe,
    devices,
    dtype_of,
    form_of,
    golden,
    numpy_of,
    overwrite,
    precision,
    put,
    supports,
    use_one_thread,
    version,
)
from xref.torch_ops.arrays import address_range as memory_of
from xref.torch_ops.arrays import environment as settings
from xref.torch_ops.memory import flushes_subnormals, peak_extra_bytes, saturates
from xref.torch_ops.modes import grad_modes as gradient_modes
from xref.torch_ops.modes import gradient, traced, traced_gradient
from xref.torch_ops.modes import gradient_calls as gradient_ways
from xref.torch_ops.modes import settings as surroundings
from xref.torch_ops.modes import transforms as modes

__all__ = [
    "CONCURRENT",
    "NAME",
    "accumulator",
    "bits_of",
    "describe",
    "devices",
    "dtype_of",
    "flushes_subnormals",
    "form_of",
    "golden",
    "gradient",
    "gradient_modes",
    "gradient_ways",
    "memory_of",
    "modes",
    "numpy_of",
    "overwrite",
    "peak_extra_bytes",
    "precision",
    "put",
    "saturates",
    "settings",
    "supports",
    "surroundings",
    "traced",
    "traced_gradient",
    "use_one_thread",
    "version",
]
