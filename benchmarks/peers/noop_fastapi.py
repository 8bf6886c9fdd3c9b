"""FastAPI and pydantic with a model that does nothing, in one process: no queue, no batching, no worker.

python noop_fastapi.py PORT CORE
"""

import os
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

os.sched_setaffinity(0, {int(sys.argv[2])})
app = FastAPI()


class Asked(BaseModel):
    model: str
    input: list[int]


class Answer(BaseModel):
    embedding: list[float]


@app.post("/v1/embeddings")
async def answer(asked: Asked) -> Answer:
    return Answer(embedding=[0.0] * 16)


uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
