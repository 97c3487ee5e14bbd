"""JAX goldens that are wrong in one way each; what JAX alone has is a trace, under which nothing can be raised."""

from __future__ import annotations

import numpy as np

from support.liars import H, V, registry
from xref import bits

# A machine without JAX collects these tests too, and deselects them.
try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError:
    jax = jnp = lax = None

__all__ = ["LIARS"]

LIARS, jax_liar = registry()


def _traced(ids):
    return isinstance(ids, jax.core.Tracer)


def _changed(out, change):
    """Return an array of JAX's with its bits changed: on the host, where nothing has to be compiled, if it can be."""
    if _traced(out):
        return lax.bitcast_convert_type(change(lax.bitcast_convert_type(out, jnp.uint16)), jnp.bfloat16)
    return jax.device_put(bits.from_bits(change(bits.as_bits(np.array(out))), "bfloat16"))


def _mask(where):
    """Return all ones where true: XLA may run a choice between 16-bit integers in floats, which changes some."""
    return jnp.uint16(0) - where[..., None].astype(jnp.uint16)


@jax_liar("EMB-1", says="got 0x0000, expected 0x8000 (0 ulp", judged=("forward",), works=("few", "empty", "scalar"))
def sign_of_zero_lost(run, ids, table, memory):
    out = run(ids, table)
    return out if _traced(ids) else _changed(out, lambda ints: np.where(ints == 0x8000, 0, ints).astype("u2"))


@jax_liar(
    "EMB-3",
    "EMB-1",
    says="out: got shape (50, 35), bfloat16, on host, expected shape (50, 35), bfloat16, on cpu",
    works=("bytes",),
)
def host_array_returned(run, ids, table, memory):
    return run(ids, table) if _traced(ids) else np.asarray(run(ids, table))


@jax_liar("EMB-5", says="out: got memory of weight, expected its own", works=("identity",), judged=("forward",))
def table_handed_back(run, ids, table, memory):
    return run(ids, table) if _traced(ids) or ids.shape != (V,) else table


@jax_liar("EMB-5", says="token_ids: got other", works=("identity",), judged=("forward",))
def host_ids_rewritten(run, ids, table, memory):
    out = run(ids, table)
    if isinstance(ids, np.ndarray):
        ids[ids == 40] = 39
    return out


@jax_liar("EMB-5", says="weight: got no elements when read", works=("identity",))
def table_deleted(run, ids, table, memory):
    # What donating the table to a jitted call does.
    out = run(ids, table)
    if not _traced(ids) and table.shape == (V, H):
        jax.block_until_ready(out)
        table.delete()
    return out


@jax_liar("EMB-7", says=" jit]", works=("few",), judged=("forward",), modes=("jit",))
def jitted_wrong(run, ids, table, memory):
    out = run(ids, table)
    return _changed(out, lambda ints: ints ^ 1) if _traced(ids) and ids.shape == (24,) else out


@jax_liar("EMB-4", "EMB-7", says="TracerArrayConversionError", works=("few",), judged=("forward",), modes=("jit",))
def no_ids_no_trace(run, ids, table, memory):
    np.asarray(ids)
    return run(ids, table)


@jax_liar("EMB-4", says=": got a result, expected IndexError", works=("scalar",), judged=("forward",))
def plain_take(run, ids, table, memory):
    return jnp.take(table, ids, axis=0, mode="clip")


@jax_liar(
    "EMB-4", says="with value 1569325056, expected 0 <= id < V=0 [forward]", works=("scalar",), judged=("forward",)
)
def host_ids_narrowed(run, ids, table, memory):
    return run(jnp.asarray(ids), table)


@jax_liar(
    "EMB-4",
    says="out[2]: got a row of values for an id out of range, expected NaN",
    works=("scalar",),
    judged=("forward",),
)
def poison_is_the_last_row(run, ids, table, memory):
    return jnp.take(table, ids, axis=0, mode="clip") if _traced(ids) else run(ids, table)


def _inside(ids, table):
    return (ids >= 0) & (ids < table.shape[0])


@jax_liar(
    "EMB-4",
    says="out[2]: got a row of values for an id out of range, expected NaN",
    works=("scalar",),
    judged=("forward",),
)
def poison_is_zeros(run, ids, table, memory):
    out = run(ids, table)
    return _changed(out, lambda ints: ints & _mask(_inside(ids, table))) if _traced(ids) else out


@jax_liar("EMB-4", says="out[2, 0]: got 0xffc0, expected 0x7fc0 (NaN", works=("scalar",), judged=("forward",))
def poison_is_another_nan(run, ids, table, memory):
    out = run(ids, table)
    return _changed(out, lambda ints: ints | (_mask(~_inside(ids, table)) & 0x8000)) if _traced(ids) else out


@jax_liar(
    "EMB-4",
    says="out: got other bits beside an id out of range, expected the rows",
    works=("scalar",),
    judged=("forward",),
)
def poison_spreads_to_good_ids(run, ids, table, memory):
    out = run(ids, table)
    if not _traced(ids):
        return out
    spread = _mask(~_inside(ids, table).all()[None])
    return _changed(out, lambda ints: (ints & ~spread) | (spread & 0x7FC0))


@jax_liar("EMB-12", says="peak extra memory: got ", works=("scalar", "tall"), judged=("forward",))
def whole_table_sorted_first(run, ids, table, memory):
    # Within its rows: of less, XLA on a CPU computes the rows looked up and no other.
    return run(ids, jnp.sort(table, axis=1) if _traced(ids) and table.shape[0] > 100_000 else table)
