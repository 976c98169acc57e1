"""Stands in for SGLang's kernel package, which is built for GPUs and for processors with AMX.

A dense model on SGLang 0.5.23 without a GPU needs two of its operators: the hash behind seeded sampling, and
the copy of cache slots into the request table. Both are here in plain torch. Any other name can be imported but
not called.
"""

from collections.abc import Callable

import torch

__version__ = "0.0.0+cpu"

LOW_32 = 0xFFFFFFFF
KEY_BYTES = 16

operators = torch.library.Library("sgl_kernel", "FRAGMENT")
operators.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
operators.define(
    "assign_req_to_token_pool_cpu(Tensor req_pool_indices, Tensor(a!) req_to_token, Tensor start_offset,"
    " Tensor end_offset, Tensor out_cache_loc, int pool_len) -> ()"
)


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (x86, 32 bits) of every row's seed and position with every column."""
    seed = seed.to(torch.int64).unsqueeze(1)
    position = positions.to(torch.int64).unsqueeze(1)
    column = col_indices.to(torch.int64).unsqueeze(0)
    state = torch.zeros(1, 1, dtype=torch.int64)
    for word in (seed, seed >> 32, position, column):
        state = absorb(state, word & LOW_32)
    return finish(state ^ KEY_BYTES).to(torch.uint32)


def absorb(state: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    """Mix one 32-bit word of the key into the state."""
    word = times(rotate(times(word, 0xCC9E2D51), 15), 0x1B873593)
    return (times(rotate(state ^ word, 13), 5) + 0xE6546B64) & LOW_32


def finish(state: torch.Tensor) -> torch.Tensor:
    """Let every bit of the state reach every bit of the hash."""
    state = times(state ^ (state >> 16), 0x85EBCA6B)
    state = times(state ^ (state >> 13), 0xC2B2AE35)
    return state ^ (state >> 16)


def times(left: torch.Tensor, right: int) -> torch.Tensor:
    """A product of 32 bits: the product of 64 may wrap, which leaves its low half right."""
    return (left * right) & LOW_32


def rotate(word: torch.Tensor, bits: int) -> torch.Tensor:
    """A 32-bit word rotated to the left."""
    return ((word << bits) & LOW_32) | (word >> (32 - bits))


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Deal the cache slots out to the requests' rows, each taking as many as its span is long."""
    lengths = (end_offset - start_offset).tolist()
    dealt = out_cache_loc[: sum(lengths)].split(lengths)
    for row, start, slots in zip(req_pool_indices.tolist(), start_offset.tolist(), dealt, strict=True):
        req_to_token[row, start : start + len(slots)] = slots.to(req_to_token.dtype)


operators.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
operators.impl("assign_req_to_token_pool_cpu", assign_req_to_token_pool, "CPU")
assign_req_to_token_pool_cpu = torch.ops.sgl_kernel.assign_req_to_token_pool_cpu


def __getattr__(name: str) -> Callable[..., None]:
    """Anything else: importable, since SGLang imports more than it calls."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on this CPU")

    return missing
