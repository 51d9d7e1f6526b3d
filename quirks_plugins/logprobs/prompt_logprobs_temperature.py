"""``prompt_logprobs`` leave the temperature out, whatever ``logprobs_mode`` is: a teacher's scores are those of temperature 1.

What happens: a run that distils at another temperature compares a student's distribution at that temperature with a teacher's
at 1, and so does one that scores its own samples by their prompts. vLLM takes logprobs of prompts from the plain logits
(``_get_prompt_logprobs_dict``, and ``prompt_logprob.py`` of the V2 runner). verl refuses such a run by itself, and Trinity-RFT
patches the method.

When it can go: when vLLM divides these logits, too; vllm-project/vllm#37082 is open. Read in 0.26.0 and 0.33.0. The setting
that tells such a run is ``max_logprobs``, which more than 20 logprobs for each token need.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome

_MOST, _TEMPERATURE = "engine.max_logprobs", "sampling.temperature"
_TEACHER = {_MOST: 128, _TEMPERATURE: 0.7}

QUIRK = Quirk(
    id="prompt-logprobs-temperature",
    title="Logprobs of prompts are those of temperature 1, also where logprobs of samples are not",
    kind=Kind.RULE,
    match=purpose("rollout")
    & (setting(_MOST).above(20) | setting(_MOST).below(0))
    & setting(_TEMPERATURE).differs_from(1.0)
    & setting(_TEMPERATURE).above(0),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Advise(
        "prompt_logprobs of this engine leave the temperature out: a teacher's or a scorer's logprobs are those of "
        "temperature 1; take that for the student, too, or logprobs of sampled tokens"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/37082"), report("verl-project/verl/pull/5592")],
    examples=[
        yes("qwen3", _TEACHER, vllm="0.32.0", advises="temperature 1"),
        yes("qwen3", {**_TEACHER, _MOST: -1}, vllm="0.33.0"),
        no("qwen3", {**_TEACHER, _TEMPERATURE: 1.0}, vllm="0.32.0"),
        no("qwen3", {_TEMPERATURE: 0.7}, vllm="0.32.0"),
        no("qwen3", _TEACHER, vllm="0.32.0", purpose="serve"),
        unknown("qwen3", _TEACHER),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """The plan warns, or logprobs of a prompt are those of its temperature."""
    from vllm import SamplingParams

    from worker.lab.kit.lab import PROMPTS

    model, measure = lab.checkpoint("qwen3"), "logprobs of a prompt at temperatures 0.5 and 1"
    values = {"engine": {"max_logprobs": -1}, "sampling": {"temperature": 0.5}}
    if any(note.quirk == "prompt-logprobs-temperature" for note in lab.plan(model, values).warnings):
        return Outcome(True, measure, "the plan warns", "other ones, or a warning")
    with lab.llm(model) as llm:
        found = []
        for temperature in (0.5, 1.0):
            params = SamplingParams(temperature=temperature, max_tokens=1, prompt_logprobs=0)
            made = llm.generate({"prompt_token_ids": list(PROMPTS[0])}, params)[0].prompt_logprobs
            found.append([next(iter(row.values())).logprob for row in made[1:]])
    return Outcome(found[0] != found[1], measure, "the same", "other ones, or a warning")
