"""Bodies of requests to a server of Tinker's API: the fields that are read here, others are ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictInt, StrictStr

from swe_trainers.engines.serving import SamplingFields

__all__ = [
    "CreateModel", "CreateSamplingSession", "GetInfo", "Heartbeat", "LoadWeights", "OptimStep", "Retrieve", "Sample",
    "SaveWeights", "SaveWeightsForSampler",
]  # fmt: skip

_MOST_SAMPLES = 4096  # of one request
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Decay = Annotated[float, Field(ge=0, lt=1)]


class _Body(BaseModel):
    model_config = ConfigDict(protected_namespaces=())  # fields may begin with "model_"


class Heartbeat(_Body):
    """Of `session_heartbeat`."""

    session_id: str


class _Adapters(_Body):
    rank: int = Field(ge=0)
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


class _Optimizer(_Body):
    type: str = "adamw"


class CreateModel(_Body):
    """A new training run."""

    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: _Adapters | None = None
    optimizer_config: _Optimizer | None = None


class LoadWeights(_Body):
    """Into the run `model_id`, or into a new one of `session_id`."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None


class GetInfo(_Body):
    """Of a training run."""

    model_id: str


class _AdamParams(_Body):
    learning_rate: _Positive
    beta1: _Decay
    beta2: _Decay
    eps: _Positive
    weight_decay: _Positive
    grad_clip_norm: _Positive


class OptimStep(_Body):
    """One step of AdamW; the client calls its parameters by either name."""

    model_id: str
    params: _AdamParams = Field(validation_alias=AliasChoices("adam_params", "optim_params"))
    seq_id: int | None = None


class SaveWeights(_Body):
    """Weights and the optimizer's state, under a name."""

    model_id: str
    path: str | None = None
    overwrite: bool = False
    seq_id: int | None = None


class SaveWeightsForSampler(_Body):
    """Weights to sample from; those that follow later saves (`inflight`) are not served."""

    model_id: str
    path: str | None = None
    kind: Literal["snapshot"] = "snapshot"
    seq_id: int | None = None


class CreateSamplingSession(_Body):
    """From saved weights, or the model as it is in its folder."""

    session_id: str
    model_path: str | None = None
    base_model: str | None = None


class _Params(SamplingFields):
    stop: str | list[StrictInt | StrictStr] | None = None


class _Chunk(_Body):
    tokens: list[int]


class _Prompt(_Body):
    chunks: list[_Chunk]


class Sample(_Body):
    """Other fields are kept in `model_extra`: some ask for what is not computed."""

    model_config = ConfigDict(extra="allow")

    sampling_session_id: str
    prompt: _Prompt
    sampling_params: _Params
    num_samples: int | None = Field(None, ge=1, le=_MOST_SAMPLES)
    seq_id: int | None = None


class Retrieve(_Body):
    """Of `retrieve_future`."""

    request_id: str
