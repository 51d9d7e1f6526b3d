"""pass@k over a JSONL dataset with a group of engines; without a model of yours, a tiny one that is taught sums first.

The configuration is that of a `worker.WorkerGroup` with one more section, ``eval``. docs/worker.md has its keys.

    python examples/run_eval.py --config examples/eval.yaml --output results.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from eval_config import EvalConfig, EvalSection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tiny_model import KINDS, make_tiny
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from quirks_core.base.errors import QuirksError, UsageError, nearest, words
from worker import GenerationConfig, WorkerGroup

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Question:
    """One line of the dataset: its number, the prompt as the model gets it, and the right answer."""

    line: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class Answered:
    """A question's responses; the lists belong together."""

    question: Question
    texts: list[str]
    answers: list[str | None]
    correct: list[bool]
    truncated: list[bool]  # cut off at max_new_tokens


# ---- the dataset


def read_dataset(config: EvalSection) -> list[Question]:
    """Reads the JSONL file; empty lines are passed over.

    Raises:
        UsageError: It cannot be read, or a line is wrong; the message gives file and line, with the nearest name.
    """
    file = Path(config.dataset)
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON allows other separators in a text
    except OSError as error:
        raise UsageError(f"eval.dataset: {file.absolute()} cannot be read: {error.strerror}") from None
    questions = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                questions.append(_question(json.loads(line), number, config))
            except ValueError as error:
                raise UsageError(f"{file}:{number}: {error}") from None
    if not questions:
        raise UsageError(f"eval.dataset: {file} is empty; it needs one JSON object per line")
    return questions


def _question(fields: dict[str, Any], number: int, config: EvalSection) -> Question:
    for name in [*_FIELD.findall(config.prompt), config.answer_field]:
        if name not in fields:
            raise ValueError(f"no field {name!r}{nearest(name, fields)}")
    prompt = _FIELD.sub(lambda match: str(fields[match[1]]), config.prompt)
    return Question(number, prompt, str(fields[config.answer_field]).strip())


def load_tokenizer(config: GenerationConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer that the engines use too.

    Raises:
        UsageError: There is none, or it needs remote code, which is never run.
    """
    name = config.model.tokenizer or config.model.path
    try:
        return AutoTokenizer.from_pretrained(name, revision=config.model.revision or "main")
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} has no tokenizer that can be loaded; set model.tokenizer. {words(error)}") from None


def encode(questions: Sequence[Question], tokenizer: PreTrainedTokenizerBase, config: EvalConfig) -> list[list[int]]:
    """Turns the prompts into token ids.

    Raises:
        UsageError: There is no chat template, or a prompt leaves no room for a response.
    """
    rows: list[list[int]] = []
    for question in questions:
        if config.eval.chat:
            if tokenizer.chat_template is None:
                raise UsageError("eval.chat: the tokenizer has no chat template; write the whole prompt into eval.prompt")
            message = [{"role": "user", "content": question.prompt}]
            rows.append(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False))
        else:
            rows.append(tokenizer(question.prompt).input_ids)
    longest = config.engine.max_model_len
    for question, row in zip(questions, rows, strict=True):
        if not row or (longest is not None and len(row) >= longest):
            raise UsageError(
                f"{config.eval.dataset}:{question.line}: the prompt has {len(row)} tokens; it needs at least one, and must "
                f"leave room for a response below engine.max_model_len = {longest}"
            )
    return rows


# ---- scores


def extracted(text: str, pattern: str | None) -> str | None:
    """Returns the answer in a response, None if there is none."""
    if pattern is None:
        return text.strip()
    found = None
    for found in re.finditer(pattern, text):  # noqa: B007  # the last one counts
        pass
    if found is None:
        return None
    answer = found[1] if found.re.groups else found[0]
    return None if answer is None else answer.strip()


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Estimates, without bias, how probable it is that at least one of k samples is right: 1 - C(n-c, k) / C(n, k).

    From Chen et al. 2021, https://arxiv.org/abs/2107.03374. The obvious 1 - (1 - c/n)^k is too low.

    Args:
        samples: n, how many were drawn; at least k.
        correct: c, how many of them are right.
        k: How many one may try.
    """
    return 1 - comb(samples - correct, k) / comb(samples, k)  # whole numbers, so nothing overflows or cancels


def scores(answered: Sequence[Answered], ks: Sequence[int]) -> dict[str, float]:
    """Returns the mean over all prompts, for each k."""
    return {
        f"pass@{k}": fmean(pass_at_k(len(item.correct), sum(item.correct), k) for item in answered) for k in dict.fromkeys(ks)
    }


# ---- generation


class Evaluation:
    """A dataset on its way through a group of engines."""

    def __init__(
        self,
        group: WorkerGroup,
        tokenizer: PreTrainedTokenizerBase,
        config: EvalSection,
        questions: Sequence[Question],
        prompts: Sequence[list[int]],
        sampled: Callable[[], None],
    ) -> None:
        """Keeps what every question needs.

        Args:
            group: The engines, running.
            tokenizer: The model's.
            config: What to do.
            questions: The dataset.
            prompts: Token ids of each question.
            sampled: Called after each sample.
        """
        self._group, self._tokenizer, self._eval, self._sampled = group, tokenizer, config, sampled
        self._questions, self._prompts = questions, prompts

    async def run(self) -> list[Answered]:
        """Answers all questions, in their order."""
        size = self._eval.batch_size or len(self._questions)
        everything = range(len(self._questions))
        if self._eval.generation == "sync":
            batches = [everything[start : start + size] for start in everything[::size]]
            return [item for batch in batches for item in await self._answer(batch)]
        room = asyncio.Semaphore(size)

        async def one(index: int) -> Answered:
            async with room:
                return (await self._answer([index]))[0]

        tasks = [asyncio.create_task(one(index)) for index in everything]
        try:
            return await asyncio.gather(*tasks)
        finally:  # an error ends the others too
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, indices: Sequence[int]) -> list[Answered]:
        """Sends questions as one batch, with all their samples, and waits for the whole of it."""
        tests = self._eval.num_tests_per_prompt
        rows = [torch.tensor(self._prompts[index]) for index in indices for _ in range(tests)]
        lengths = torch.tensor([len(row) for row in rows])
        first = self._eval.seed << 32  # of another seed's samples, none has the same
        batch = {
            "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            "input_lengths": lengths,
            "seeds": [first + index * tests + test for index in indices for test in range(tests)],
        }
        texts, truncated = [""] * len(rows), [False] * len(rows)
        async for row, output in self._group.generate_async(batch):
            new = output["output_ids"][0, len(rows[row]) :].tolist()
            texts[row] = self._tokenizer.decode(new, skip_special_tokens=True)
            truncated[row] = bool(output["truncated"][0])
            self._sampled()
        return [
            self._scored(self._questions[index], texts[start : start + tests], truncated[start : start + tests])
            for index, start in zip(indices, range(0, len(rows), tests), strict=True)
        ]

    def _scored(self, question: Question, texts: list[str], truncated: list[bool]) -> Answered:
        answers = [extracted(text, self._eval.answer_pattern) for text in texts]
        return Answered(question, texts, answers, [answer == question.answer for answer in answers], truncated)


# ---- the run


def results(config: EvalConfig, group: WorkerGroup, answered: Sequence[Answered]) -> dict[str, Any]:
    """Returns the summary, and every prompt with its responses, ready for JSON."""
    ks, sampling = config.eval.k, config.sampling
    summary = {
        "model_name": config.model.path,
        "dataset_name": config.eval.dataset_name or Path(config.eval.dataset).stem,
        "max_new_tokens": sampling.max_new_tokens,
        **{name: group.plan.value(f"sampling.{name}") for name in ("temperature", "top_p", "top_k")},
        "seed": config.eval.seed,
        "metric": config.eval.metric,
        "num_tests_per_prompt": config.eval.num_tests_per_prompt,
        "score": scores(answered, ks),
        "prompts": len(answered),
        "truncated": sum(sum(item.truncated) for item in answered),
        "generation": config.eval.generation,
        "dp_strategy": str(group.strategy),
        "data_parallel_size": config.engine.data_parallel_size,
        "vllm": group.plan.context.packages.get("vllm"),
        "plan": group.plan.digest,
    }
    rows = [
        {
            "line": item.question.line,
            "prompt": item.question.prompt,
            "answer": item.question.answer,
            "texts": item.texts,
            "answers": item.answers,
            "correct": item.correct,
            "truncated": item.truncated,
            **scores([item], ks),
        }
        for item in answered
    ]
    return {"summary": summary, "prompts": rows}


def block(summary: dict[str, Any]) -> str:
    """Writes the summary for a person."""

    def pairs(*names: str) -> str:
        return " ".join(f"{name}={summary[name]!r}" for name in names)

    count = summary["prompts"]
    lines = [
        "=" * 60,
        pairs("model_name", "dataset_name"),
        pairs("max_new_tokens", "temperature", "top_p", "top_k", "seed"),
        "",
        f"metric={summary['metric']} {pairs('num_tests_per_prompt')}",
        "",
        *(f"{name} score={score:.4f} ({score * count:.2f}/{count})" for name, score in summary["score"].items()),
        "=" * 60,
    ]
    return "\n".join(lines)


async def run(config: EvalConfig, console: Console) -> dict[str, Any]:
    """Starts the engines, asks everything with progress, and ends the engines whatever happens."""
    questions = read_dataset(config.eval)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="run-eval-") as folder:
        model = config.model.path
        if kind := KINDS.get(model):
            pairs = [(question.prompt, question.answer) for question in questions]
            right = make_tiny(kind, Path(folder), pairs, config.eval.seed)
            model = folder
            console.print(f"taught a tiny model: at temperature 1 it is right with probability {right:.3f}", highlight=False)
        group = WorkerGroup(config.for_engines(model))
        tokenizer = load_tokenizer(group.config)
        prompts = encode(questions, tokenizer, config)  # what is wrong with them is said before the engines start
        for text in [*config.notes(), *group.warnings]:
            console.print(f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        try:
            with console.status("starting the engines …"):
                await group.start()
            with Progress(*columns, console=console) as bar:
                task = bar.add_task("samples", total=len(questions) * config.eval.num_tests_per_prompt)
                evaluation = Evaluation(group, tokenizer, config.eval, questions, prompts, lambda: bar.advance(task))
                answered = await evaluation.run()
        finally:
            await group.shutdown()
    return results(config, group, answered)


def main() -> int:
    """Returns 0 after an evaluation, whatever the score; 1 if something failed, 2 for wrong arguments or configurations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="YAML file: the engines' configuration and a section 'eval'")
    parser.add_argument("--model", help="folder or hub id, instead of the file's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="lay a value over the file's; repeatable"
    )
    parser.add_argument("--output", type=Path, help="write the summary and every response to this file, as JSON")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args()
    if options.output is not None and not options.output.absolute().parent.is_dir():  # said now, not after the run
        parser.error(f"--output: there is no folder {options.output.parent}")
    console = Console(stderr=True)
    disable_progress_bar()  # transformers' own, for models of a few kilobytes
    torch.set_num_threads(1)  # so small a model gains nothing from a second thread
    began = time.perf_counter()
    try:
        config = EvalConfig.load(options.config, model=options.model, settings=options.set)
        found = asyncio.run(run(config, console))
    except QuirksError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    summary = found["summary"]
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=2, ensure_ascii=False) if options.json else block(summary))
    if summary["truncated"]:
        total = summary["prompts"] * summary["num_tests_per_prompt"]
        cut = (
            f"{summary['truncated']} of {total} responses were cut off at sampling.max_new_tokens = {summary['max_new_tokens']}"
        )
        console.print(f"warning: {cut}", style="yellow", highlight=False, soft_wrap=True)
    where = f"; results: {options.output}" if options.output is not None else ""
    console.print(f"{time.perf_counter() - began:.0f} s{where}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":  # the engines spawn processes, and each of them may import this file
    sys.exit(main())
