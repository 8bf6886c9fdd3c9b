"""Small worlds for the sampler: columns from keywords, and edits from what they change."""

import numpy as np

from serving.sampling import LogitEdits, SamplingRows, uniforms


def columns(count, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=None, logprobs=-1, edits=()):
    """Rows from scalars or lists; without `uniform`, row r gets the r-th number of seed 0."""

    def column(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), (count,)).copy()

    if uniform is None:
        uniform = uniforms(np.zeros(count, np.int64), np.arange(count))
    return SamplingRows(
        temperature=column(temperature, np.float32),
        top_k=column(top_k, np.int64),
        top_p=column(top_p, np.float64),
        min_p=column(min_p, np.float64),
        uniform=column(uniform, np.float64),
        logprobs=column(logprobs, np.int64),
        edits=tuple(edits),
    )


def edit(row=0, prompt=(), output=(), repetition=1.0, presence=0.0, frequency=0.0, bias=None, banned=()):
    bias = bias or {}
    return LogitEdits(
        row=row,
        prompt_ids=np.array(prompt, np.int64),
        output_ids=np.array(output, np.int64),
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        bias_ids=np.array(list(bias), np.int64),
        bias=np.array(list(bias.values()), np.float32),
        banned_ids=np.array(banned, np.int64),
    )
