"""Log-probabilities as OpenAI's two APIs write them."""

from __future__ import annotations

from serving.http.generation import Piece
from serving.http.openai_types import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from serving.text import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, pieces: list[Piece]) -> ChatLogprobs:
    return ChatLogprobs([_token_logprob(tokenizer, piece) for piece in pieces if piece.logprobs is not None])


def completion_logprobs(
    tokenizer: Tokenizer, pieces: list[Piece], offset: int, as_ids: bool = False
) -> CompletionLogprobs:
    """`offset`: characters of the answer before the first of these pieces. `as_ids`: name tokens by their ids, which
    differ where texts may not."""
    result = CompletionLogprobs([], [], [], [])

    def name(token: int) -> str:
        return f"token_id:{token}" if as_ids else _text(tokenizer.token_bytes(token))

    for piece in pieces:
        if piece.logprobs is not None and piece.token is not None:
            said = piece.logprobs
            result.tokens.append(name(piece.token))
            result.token_logprobs.append(said.logprob)
            likely = zip(said.top_ids, said.top_logprobs, strict=True)
            result.top_logprobs.append({name(id_): logprob for id_, logprob in likely})
            result.text_offset.append(offset)
        offset += len(piece.text)
    return result


def _token_logprob(tokenizer: Tokenizer, piece: Piece) -> TokenLogprob:
    assert piece.logprobs is not None
    said = piece.logprobs
    raw = b"" if piece.token is None else tokenizer.token_bytes(piece.token)
    top = [
        TopLogprob(_text(likely), logprob, list(likely))
        for likely, logprob in zip(map(tokenizer.token_bytes, said.top_ids), said.top_logprobs, strict=True)
    ]
    return TokenLogprob(_text(raw), said.logprob, list(raw), top)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
