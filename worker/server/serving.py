"""The routes, by vLLM's serving classes; they are found where the installed version has them.

Imports vLLM to derive from its classes, so import it after the plan is in force. Written for 0.26 to 0.33,
tested on 0.32, and tried on 0.28 and 0.30.
"""

# No postponed annotations: FastAPI reads those of the routes.
import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, PrivateAttr, model_validator
from starlette.responses import Response
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.renderers.online_renderer import OnlineRenderer

from quirks_core.base.errors import words
from quirks_core.configuration.config import GenerationConfig
from worker.engine.engine import Engine
from worker.server.errors import RequestError, ServerStartError
from worker.server.prefix_tokens import Prefix, prefix_of, replace_prefix_tokens, without_answers, without_carried
from worker.server.profile import SamplingProfile
from worker.server.results import Record, SupervisedEngine, found


class _Keeping(BaseModel):
    """A request with messages that may require a prefix of token ids."""

    _prefix: Prefix | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _take_prefix(cls, body: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Takes the ids out of the messages, so that no template can show them to the model."""
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list):
            return handler(body)
        prefix = prefix_of(messages, body.get("required_prefix_token_ids"))
        request = handler({**body, "messages": without_carried(messages)})
        request._prefix = prefix
        return request


class _Fitting(BaseModel):
    """A request that generates fewer tokens than it asks for at least, if there is no room."""

    def to_sampling_params(self, max_tokens: int, *args: Any, **kwargs: Any) -> Any:
        request: Any = self
        asked = request.min_tokens
        request.min_tokens = min(asked, max_tokens)
        try:
            return super().to_sampling_params(max_tokens, *args, **kwargs)  # type: ignore[misc]
        finally:
            request.min_tokens = asked  # the next prompt may leave more room


class TextRequest(_Fitting, CompletionRequest):  # type: ignore[misc]
    """A completion request."""


class ChatRequest(_Keeping, _Fitting, ChatCompletionRequest):  # type: ignore[misc]
    """A chat request."""

    #: Whether the reply's message carries its token ids and their logprobs.
    _carries: bool = PrivateAttr(default=False)

    def to_sampling_params(self, max_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Requests the sampled tokens' logprobs too if the message is to carry them."""
        params = super().to_sampling_params(max_tokens, *args, **kwargs)
        if params.logprobs is None and (self.logprobs or self._carries) and not self.logprob_token_ids:
            params.logprobs = 0
        return params

    def build_tok_params(self, model_config: Any) -> Any:
        """Reserves no room for the reply, so that the prompt may fill the context; the reply is cut to what remains."""
        params = replace(super().build_tok_params(model_config), max_output_tokens=0)
        # With a required prefix this rendering is replaced; the final ids are checked instead.
        return replace(params, max_total_tokens=None) if self._prefix else params


class TokenizeRequest(_Keeping, TokenizeChatRequest):  # type: ignore[misc]
    """A tokenize request with messages."""


class Renderer(OnlineRenderer):  # type: ignore[misc]
    """Renders a conversation with the chat template, then puts the ids that the model produced in their place."""

    async def preprocess_chat(self, request: Any, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        """Overrides vLLM's; called for chat and for tokenize requests.

        Raises:
            RequestError: The prefix does not fit the messages.
        """
        if (prefix := request._prefix) is None:
            return await super().preprocess_chat(request, messages, *args, **kwargs)
        if (largest := max(prefix.token_ids)) >= (size := self.model_config.get_vocab_size()):  # vLLM looks at its own alone
            problem = f"{prefix.source}: token id {largest} is outside the vocabulary of {size} ids"
            raise RequestError(problem, parameter=prefix.source)
        # Pydantic reads lists in messages as iterators that can be gone through once; this renders a message twice.
        messages = request.model_dump(mode="json", include={"messages"}, warnings=False)["messages"]
        head = without_answers(messages[: prefix.messages])
        conversation, inputs = await super().preprocess_chat(request, head + messages[prefix.messages :], *args, **kwargs)
        shorter = request.model_copy(update={"add_generation_prompt": False, "continue_final_message": False})
        kwargs["parser"] = None  # it would adjust the request a second time
        _, shown = await super().preprocess_chat(shorter, head, *args, **kwargs)
        whole, template_prefix = _ids(inputs, prefix), _ids(shown, prefix)
        tokenizer = self.renderer.get_tokenizer()
        end = self._end_of_turn(tokenizer, template_prefix)
        joined = replace_prefix_tokens(tokenizer, prefix.token_ids, template_prefix, whole, end_token_id=end)
        inputs[0]["prompt_token_ids"] = joined
        inputs[0].pop("prompt", None)  # the text of other ids
        return conversation, inputs

    def _end_of_turn(self, tokenizer: Any, template_prefix: list[int]) -> int | None:
        """Finds the token that ends a turn in the template: mostly the end of sequence, in some families another stop token."""
        eos: int | None = tokenizer.eos_token_id
        if eos in template_prefix:
            return eos
        stops = self.model_config.try_get_generation_config().get("eos_token_id")
        last = next((token for token in reversed(template_prefix) if tokenizer.decode([token]).strip()), None)
        return last if last in (stops if isinstance(stops, list) else [stops]) else eos


class Chat(OpenAIServingChat):  # type: ignore[misc]
    """Chat completions whose message carries the ids and logprobs that it is made of."""

    async def chat_completion_full_generator(self, request: ChatRequest, results: Any, *args: Any, **kwargs: Any) -> Any:
        """Overrides vLLM's: the whole reply at once."""
        record = Record()
        reply = await super().chat_completion_full_generator(request, record.noting(results), *args, **kwargs)
        for choice in getattr(reply, "choices", ()) if request._carries else ():
            for name, value in record.fields[choice.index].items():
                setattr(choice.message, name, value)
            if choice.routed_experts is not None:
                choice.message.routed_experts = choice.routed_experts
        return reply

    async def chat_completion_stream_generator(
        self, request: ChatRequest, results: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[str, None]:
        """Overrides vLLM's: the reply as server-sent events; a choice's last delta carries its ids."""
        record = Record()
        events = super().chat_completion_stream_generator(request, record.noting(results), *args, **kwargs)
        async with aclosing(events):
            async for event in events:
                # In JSON a quote within a text is escaped, so no generated text looks like this.
                carrying = request._carries and '"finish_reason":"' in event
                yield record.in_event(event) if carrying else event


class Serving:
    """vLLM's handlers for one engine.

    Args:
        engine: The engine; what it must not do now, or its death, is status 503 with that message.
        config: The configuration.

    Attributes:
        handlers: They, as vLLM's routes find them in the state of their application.

    Raises:
        ServerStartError: The installed vLLM refuses the configuration.
    """

    def __init__(self, engine: Engine, config: GenerationConfig) -> None:
        self._engine = engine
        self._profile = SamplingProfile(config)
        self._carry = config.purpose == "rollout"
        try:
            self._build(config)
        except Exception as error:
            raise ServerStartError(f"server: vLLM refuses its configuration: {words(error)}") from error

    def _build(self, config: GenerationConfig) -> None:
        section, path, llm = config.server, config.model.path, self._engine.llm
        name = section.served_model_name or path
        load_template = found("load_chat_template", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")
        shared = {
            "engine_client": SupervisedEngine(self._engine, config.request.timeout_s),
            "model_config": llm.model_config,
            "renderer": llm.renderer,
            "request_logger": None,
            "chat_template": load_template(section.chat_template),
            "chat_template_content_format": "auto",
            "enable_auto_tools": section.tool_parser is not None,
            "tool_parser": section.tool_parser,
            "reasoning_parser": section.reasoning_parser or "",
            "response_role": "assistant",
            "models": _made(OpenAIServingModels, engine_client=llm, base_model_paths=[BaseModelPath(name, path)]),
        }
        shared["online_renderer"] = self._renderer = _made(Renderer, **shared)
        chat, completion = _made(Chat, **shared), _made(OpenAIServingCompletion, **shared)
        for handler in (chat, completion):
            handler.default_sampling_params = self._profile.defaults
            handler.override_max_tokens = None  # generation_config.json's
        self.handlers: dict[str, Any] = {
            "openai_serving_models": shared["models"],
            "openai_serving_chat": chat,
            "openai_serving_completion": completion,
            "serving_tokenization": _made(ServingTokenization, **shared),
        }

    async def health(self) -> Response:
        """``GET /health``: 200 if the engine can generate, else 503; needs no key, so it gives no reason."""
        healthy = self._engine.readiness.problem is None and not self._engine.llm.errored
        return Response(status_code=200 if healthy else 503)

    async def prepare(self, request: Any) -> None:
        """Completes a request that generates, or refuses it.

        Raises:
            QuirksError: The engine must not generate now, or not so.
        """
        if not isinstance(request, _Fitting):
            return
        async with self._engine.watched():  # raises if the engine is dead
            self._engine.readiness.check()
        if isinstance(request, ChatRequest):
            if request._prefix is not None and self._renderer.use_harmony:
                problem = "gpt-oss is not rendered by a chat template; no prefix can be required"
                raise RequestError(problem, parameter=request._prefix.source)
            request._carries = request.return_token_ids if request.return_token_ids is not None else self._carry
        self._profile.complete(request)


def _ids(rendered: list[Any], prefix: Prefix) -> list[int]:
    if any(item.get("type", "token") != "token" for item in rendered):
        raise RequestError(
            f"{prefix.source}: only prompts without images, audio or video can keep a model's ids", parameter=prefix.source
        )
    return list(rendered[0]["prompt_token_ids"])


def _made(kind: type[Any], **arguments: Any) -> Any:
    """Makes one of vLLM's objects with those arguments that its constructor takes in the installed version."""
    return kind(**{name: value for name, value in arguments.items() if name in inspect.signature(kind).parameters})
