"""Small models of the BERT family with weights from a seed, which the real engine loads: one for vectors, one for scores.

What they say means nothing. That they say it, always the same, in the right shape and order, is what is tested with them.
"""

from __future__ import annotations

import random
import struct
from typing import Any, Final

from tests.simulators.gguf_files import GgufDraft

__all__ = ["EMBEDDING", "bert_gguf"]

EMBEDDING: Final = 32
_FEED: Final = 64
_BLOCKS: Final = 2
_CONTEXT: Final = 512
_MEAN, _RANK = 1, 4
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS: Final = [
    "the",
    "a",
    "of",
    "is",
    "in",
    "capital",
    "france",
    "paris",
    "berlin",
    "cat",
    "dog",
    "stock",
    "market",
    "weather",
]


def _vocabulary() -> list[str]:
    """As files hold it: a word's beginning is marked, what continues one is not."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
    return list(dict.fromkeys([*_SPECIAL, *(f"\u2581{one}" for one in (*_WORDS, *letters)), *letters]))


def bert_gguf(*, ranks: bool, seed: int = 1) -> bytes:
    """`ranks`: it scores a text against a query, by a head of one output."""
    words = _vocabulary()
    keys: dict[str, Any] = {
        "general.architecture": "bert",
        "general.name": "seeded",
        "bert.vocab_size": len(words),
        "bert.context_length": _CONTEXT,
        "bert.embedding_length": EMBEDDING,
        "bert.feed_forward_length": _FEED,
        "bert.block_count": _BLOCKS,
        "bert.attention.head_count": 4,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": _RANK if ranks else _MEAN,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.mask_token_id": 4,
    }
    draft = GgufDraft(keys)
    _tensors(draft, len(words), ranks=ranks)
    header, size = draft.header()
    return header + _filled(draft, size, random.Random(seed))


def _tensors(draft: GgufDraft, vocabulary: int, *, ranks: bool) -> None:
    def pair(name: str, rows: int, columns: int) -> None:
        draft.add(f"{name}.weight", rows, columns, kind=0)
        draft.add(f"{name}.bias", columns)

    def norm(name: str) -> None:
        draft.add(f"{name}.weight", EMBEDDING)
        draft.add(f"{name}.bias", EMBEDDING)

    draft.add("token_embd.weight", EMBEDDING, vocabulary, kind=0)
    draft.add("token_types.weight", EMBEDDING, 2, kind=0)
    draft.add("position_embd.weight", EMBEDDING, _CONTEXT, kind=0)
    norm("token_embd_norm")
    for number in range(_BLOCKS):
        block = f"blk.{number}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            pair(f"{block}.{name}", EMBEDDING, EMBEDDING)
        norm(f"{block}.attn_output_norm")
        pair(f"{block}.ffn_up", EMBEDDING, _FEED)
        pair(f"{block}.ffn_down", _FEED, EMBEDDING)
        norm(f"{block}.layer_output_norm")
    if ranks:
        pair("cls", EMBEDDING, EMBEDDING)
        pair("cls.output", EMBEDDING, 1)


def _filled(draft: GgufDraft, size: int, chance: random.Random) -> bytes:
    """Small numbers; norms stay near one, so that nothing vanishes on the way."""
    data = bytearray()
    for name, dimensions, _kind in draft.tensors:
        count = 1
        for one in dimensions:
            count *= one
        middle = 1.0 if name.endswith("norm.weight") else 0.0
        data += struct.pack(f"<{count}f", *(middle + chance.uniform(-0.3, 0.3) for _ in range(count)))
        data += b"\0" * ((-len(data)) % 32)
    assert len(data) == size
    return bytes(data)
