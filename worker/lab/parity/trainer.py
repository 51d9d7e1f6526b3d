"""The trainer's side of a comparison: a transformers model with several sets of weights, that scores samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

from quirks_core.base.errors import QuirksError, words
from quirks_core.base.text import listed
from worker.lab.parity.records import NEW, OLD, Sample
from worker.lab.parity.scoring import logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TrainerLoadError(QuirksError):
    """Transformers cannot load the trainer's model; scenarios that compare the engine with itself need none."""


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """How the trainer computes."""

    dtype: str | None = None  #: the weights' dtype: ``float32``, ``bfloat16`` or ``float16``; the checkpoint's if None
    attn_implementation: str | None = None  #: attention, as transformers calls it; transformers' choice if None
    #: ``float32`` computes the product of the language-model head in float32; ``model`` or None in the dtype of the rest
    head_dtype: str | None = None
    device: str = "cpu"  #: where it computes
    autocast: str | None = None  #: dtype of the products under torch's autocast (mixed precision); that of the weights if None

    def __post_init__(self) -> None:
        if self.autocast == "none":  # as the slot train.autocast has it
            object.__setattr__(self, "autocast", None)

    @property
    def arithmetic(self) -> dict[str, Any]:
        """The keywords for `worker.lab.parity.scoring`: what is not a property of the module."""
        return {"float32_head": self.head_dtype == "float32", "autocast": self.autocast}


@dataclass(slots=True)
class _Scorer:
    """A module, its options, and the label of the weights that it holds."""

    module: PreTrainedModel
    dtype: str
    attn_implementation: str | None
    device: str
    held: str = OLD

    def serves(self, options: TrainerOptions) -> bool:
        return (options.dtype in (None, self.dtype)) and (
            (options.attn_implementation, options.device) == (self.attn_implementation, self.device)
        )


class Trainer:
    """A trainer's model that is never trained.

    The model for refits has the checkpoint's dtype, whatever the dtype of scoring. Where samples are scored in
    another dtype or with another attention than that, a second module is loaded that way and given the same weights. It is kept
    until other options are requested.

    Attributes:
        model: The live module with the weights in use: what a refit sends.
    """

    def __init__(self, model: PreTrainedModel, source: str, revision: str | None, options: TrainerOptions) -> None:
        """Wraps a model with its checkpoint's weights; `load` makes one."""
        self.model = model
        self._source = source
        self._revision = revision
        self._options = options
        dtype = str(model.dtype).removeprefix("torch.")
        self._live = _Scorer(model, dtype, options.attn_implementation, options.device)
        self._second: _Scorer | None = None
        #: By label: a copy of every parameter on the CPU, tied ones once. The checkpoint's are copied before they first change.
        self._weights: dict[str, dict[str, torch.Tensor]] = {}

    @classmethod
    def load(cls, model: str, options: TrainerOptions, *, revision: str | None = None) -> Trainer:
        """Loads a checkpoint, without running code that comes with it; `options` are the defaults of later calls.

        Raises:
            TrainerLoadError: Transformers cannot load it, or the checkpoint lacks some of the model's tensors.
        """
        return cls(load_model(model, revision, options, "auto"), model, revision, options)

    @property
    def label(self) -> str:
        """Which weights are in use."""
        return self._live.held

    def perturb(self, label: str, *, scale: float = 0.02) -> None:
        """Makes further weights, as an optimizer's step would: the checkpoint's with noise on every floating parameter.

        Buffers keep their values, since nothing trains them, and tied parameters stay tied. The weights in use do not change.

        Args:
            label: Their label; other weights with this label are replaced.
            scale: Standard deviation of the noise, in standard deviations of each parameter's own values.
        """
        noise = torch.Generator().manual_seed(0)
        if OLD not in self._weights:
            self._weights[OLD] = {name: row.detach().to("cpu", copy=True) for name, row in self.model.named_parameters()}
        self._weights[label] = {name: _perturbed(tensor, scale, noise) for name, tensor in self._weights[OLD].items()}

    def use(self, label: str) -> None:
        """Puts weights into `model`; the checkpoint's come back bit for bit, and `NEW` are made when they are first needed."""
        self._hold(self._live, label, again=True)  # a refit must not depend on what the caller did to the module

    def score(self, samples: Sequence[Sample], options: TrainerOptions | None = None) -> list[Sample]:
        """Returns samples with the trainer's logprobs.

        Each token is scored by the weights of its span, on the whole sequence, and by the checkpoint's where no span
        holds it; as loaded if there are no options. Afterwards `model` holds the weights it held before.

        Raises:
            TrainerLoadError: Transformers cannot load the model with these options.
        """
        options = options or self._options
        wanted = [_labels(sample) for sample in samples]
        scorer, before = self._scorer(options), self.label
        found = [[0.0] * len(labels) for labels in wanted]
        try:
            for label in sorted({label for labels in wanted for label in labels}):
                numbers = [number for number, labels in enumerate(wanted) if label in labels]
                self._hold(scorer, label)
                rows = logprobs(scorer.module, [samples[number] for number in numbers], **options.arithmetic)
                for number, row in zip(numbers, rows, strict=True):
                    chosen = zip(wanted[number], row, found[number], strict=True)
                    found[number] = [new if own == label else old for own, new, old in chosen]
        finally:
            self._hold(self._live, before)
        return [sample.model_copy(update={"trainer": tuple(row)}) for sample, row in zip(samples, found, strict=True)]

    def _scorer(self, options: TrainerOptions) -> _Scorer:
        if self._live.serves(options):
            return self._live
        if self._second is None or not self._second.serves(options):
            self._second = None  # frees its memory first
            dtype = options.dtype or self._live.dtype
            module = load_model(self._source, self._revision, options, dtype)
            self._second = _Scorer(module, dtype, options.attn_implementation, options.device)
        return self._second

    def _hold(self, scorer: _Scorer, label: str, *, again: bool = False) -> None:
        if label == NEW and label not in self._weights:
            self.perturb(label)
        if self._weights and (again or scorer.held != label):  # without a copy there is nothing but the checkpoint's
            with torch.no_grad():
                for name, parameter in scorer.module.named_parameters():
                    parameter.copy_(self._weights[label][name])
        scorer.held = label


def _labels(sample: Sample) -> list[str]:
    labels = [OLD] * len(sample.tokens)
    for label, start, end in sample.scoring.weights:
        labels[start:end] = [label] * len(labels[start:end])
    return labels


def _perturbed(tensor: torch.Tensor, scale: float, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    values = tensor.float()
    # A single number, or a norm that is still all ones, has no standard deviation; its magnitude is used instead.
    spread = values.std(correction=0) or values.abs().mean()
    return (values + scale * spread * torch.randn(values.shape, generator=generator)).to(tensor.dtype)


def load_model(
    source: str, revision: str | None, options: TrainerOptions, dtype: str, *, named: bool = False
) -> PreTrainedModel:
    """Loads a checkpoint in a dtype, without running code that comes with it; errors as for `Trainer.load`.

    As the class that its configuration names if `named`: a multimodal one holds more than the language model.
    """
    chosen = {"dtype": dtype, "attn_implementation": options.attn_implementation, "revision": revision}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(source, revision=revision) if named else None
            name = next(iter(getattr(config, "architectures", None) or ()), "")
            loader = getattr(transformers, name, transformers.AutoModelForCausalLM)
            model, report = loader.from_pretrained(source, trust_remote_code=False, output_loading_info=True, **chosen)
            model = model.to(options.device).eval()
    except Exception as error:
        raise TrainerLoadError(f"transformers cannot load the trainer's model from {source}: {words(error)}") from error
    if lost := sorted(str(name) for kind in ("missing_keys", "mismatched_keys") for name in report.get(kind, ())):
        # transformers draws them at random
        raise TrainerLoadError(f"transformers finds tensors of the trainer's model missing in {source}: {listed(lost)}")
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Hides transformers' progress bar and its report on the loading; the caller reads the report instead."""
    logging = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
