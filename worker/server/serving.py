"""The only module that uses vLLM's serving classes; it finds them where the installed version has them.

Imports vLLM to derive from its classes, so import it after the plan is in force. Written for 0.26 to 0.33 and run on 0.32;
code that is only for 0.26 follows its sources and has not been run.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from dataclasses import replace
from typing import Any

import msgspec
from pydantic import BaseModel, PrivateAttr
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from quirks_core.base.errors import QuirksError, words
from quirks_core.configuration.config import GenerationConfig
from worker.errors import RefitError, RefitRejectedError, SleepError, UpdateOrderError
from worker.server.checking import check_ids, checked
from worker.server.errors import RequestError, ServerStartError
from worker.server.prefix_tokens import Prefix, prefix_of, replace_prefix_tokens, without_carried, without_texts
from worker.server.profile import SamplingProfile
from worker.server.supervision import Record, Supervision, with_carried

_LOG = logging.getLogger(__name__)
#: HTTP status of the worker's errors; all others have 503.
_STATUSES = ((UpdateOrderError, 409), (RefitRejectedError, 400), (RefitError, 500), (SleepError, 400))


class ChatRequest(ChatCompletionRequest):  # type: ignore[misc]
    """A chat request that may require a prefix of token ids.

    Attributes:
        required_prefix_token_ids: Ids that stand for all messages up to the last assistant's.
    """

    required_prefix_token_ids: list[int] | None = None

    _prefix: Prefix | None = PrivateAttr(default=None)
    #: Whether the reply's message carries its token ids and their logprobs.
    _carries: bool = PrivateAttr(default=False)
    #: Fewest tokens to generate, if there is room for them.
    _least: int = PrivateAttr(default=0)

    def to_sampling_params(self, max_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Requests the sampled tokens' logprobs too if the message is to carry them."""
        self.min_tokens: int = self.min_tokens or min(self._least, max_tokens)
        params = super().to_sampling_params(max_tokens, *args, **kwargs)
        if params.logprobs is None and (self.logprobs or self._carries) and not self.logprob_token_ids:
            params.logprobs = 0
        return params

    def build_tok_params(self, model_config: Any) -> Any:
        """Reserves no room for the reply, so that the prompt may fill the context; the reply is cut to what remains."""
        params = replace(super().build_tok_params(model_config), max_output_tokens=0)
        # With a required prefix this rendering is replaced; the final ids are checked instead.
        return replace(params, max_total_tokens=None) if self._prefix else params


class TokenizeRequest(TokenizeChatRequest):  # type: ignore[misc]
    """A tokenize request with messages that may require a prefix of token ids."""

    required_prefix_token_ids: list[int] | None = None

    _prefix: Prefix | None = PrivateAttr(default=None)


class Renderer(OnlineRenderer):  # type: ignore[misc]
    """Renders a conversation with the chat template, then puts the ids that the model produced in their place."""

    #: Long prompts take turns: vLLM renders in one thread, and a short prompt waits for at most one of them.
    long_prompts: asyncio.Semaphore

    def _turn(self, prompt: Any) -> AbstractAsyncContextManager[None]:
        return self.long_prompts if len(msgspec.json.encode(prompt, enc_hook=str)) > 32_768 else nullcontext()

    async def preprocess_chat(self, request: Any, messages: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """Overrides vLLM's; called for chat and for tokenize requests.

        Raises:
            RequestError: The template fails on the messages, the prefix does not fit them, or the prompt fills the context.
        """
        try:
            messages = [_at_rest(message) for message in messages]
            async with self._turn(messages):
                conversation, inputs = await super().preprocess_chat(request, messages, *args, **kwargs)
                prefix: Prefix | None = getattr(request, "_prefix", None)
                if prefix is not None and prefix.token_ids:
                    kwargs["parser"] = None  # it would adjust the request a second time
                    await self._keep(prefix, request, messages, inputs, *args, **kwargs)
        except Exception as error:
            if isinstance(error, QuirksError) or type(error).__module__.startswith("vllm."):
                raise
            # Templates are programs, and their only input is the client's messages.
            raise RequestError(f"the messages cannot be rendered: {error}", parameter="messages") from error
        if isinstance(request, ChatRequest):
            self._leave_room(inputs)
        return conversation, inputs

    async def preprocess_completion(self, request: Any, prompt_input: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Overrides vLLM's; called for tokenize requests with a text."""
        async with self._turn(prompt_input):
            inputs: list[Any] = await super().preprocess_completion(request, prompt_input, *args, **kwargs)
            return inputs

    async def _keep(
        self, prefix: Prefix, request: Any, messages: list[Any], inputs: list[Any], *args: Any, **kwargs: Any
    ) -> None:
        async def rendered(request: Any, messages: list[Any]) -> list[int]:
            _, found = await super(Renderer, self).preprocess_chat(request, messages, *args, **kwargs)
            return _ids(found, prefix)

        shorter = request.model_copy(update={"add_generation_prompt": False, "continue_final_message": False})
        whole, template_prefix = _ids(inputs, prefix), await rendered(shorter, messages[: prefix.messages])
        tokenizer = self.renderer.get_tokenizer()
        end = self._end_of_turn(tokenizer, template_prefix)
        ends_after = None
        with suppress(Exception):  # a template may reject empty texts; then only the two renderings are compared
            plain = without_texts(messages[: prefix.messages])
            pair = await rendered(request, plain + messages[prefix.messages :]), await rendered(shorter, plain)
            ends_after = pair[0].count(end) - pair[1].count(end) if end is not None else None
        joined = replace_prefix_tokens(
            tokenizer, prefix.token_ids, template_prefix, whole, end_token_id=end, ends_after=ends_after
        )
        inputs[0]["prompt_token_ids"] = joined
        inputs[0].pop("prompt", None)  # the text of other ids

    def _end_of_turn(self, tokenizer: Any, template_prefix: list[int]) -> int | None:
        """Finds the token that ends a turn in the template: mostly the end of sequence, in some families another stop token."""
        eos: int | None = tokenizer.eos_token_id
        if eos in template_prefix:
            return eos
        stops = self.model_config.try_get_generation_config().get("eos_token_id")
        last = next((token for token in reversed(template_prefix) if tokenizer.decode([token]).strip()), None)
        return last if last in (stops if isinstance(stops, list) else [stops]) else eos

    def _leave_room(self, inputs: list[Any]) -> None:
        longest = self.model_config.max_model_len
        length = max(len(item.get("prompt_token_ids", ())) for item in inputs)
        if length >= longest:
            raise RequestError(
                f"the prompt has {length} tokens, which leaves no room for a reply: prompt and reply together may have "
                f"engine.max_model_len = {longest}",
                parameter="messages",
            )


class Chat(OpenAIServingChat):  # type: ignore[misc]
    """Chat completions whose message carries the ids and logprobs that it is made of.

    Attributes:
        supervision: How to wait for the engine.
    """

    supervision: Supervision

    async def chat_completion_full_generator(self, request: ChatRequest, results: Any, *args: Any, **kwargs: Any) -> Any:
        """Overrides vLLM's: the whole reply at once."""
        record = Record()
        async with aclosing(self.supervision.results(results, record, grammar=_grammar(request))) as noted:
            reply = await super().chat_completion_full_generator(request, noted, *args, **kwargs)
        record.check()  # vLLM returns an error of its own for a request that ended early
        for choice in getattr(reply, "choices", ()) if request._carries else ():
            for name, value in record.carried(choice.index, choice.routed_experts).items():
                setattr(choice.message, name, value)
        return reply

    async def chat_completion_stream_generator(
        self, request: ChatRequest, results: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[str, None]:
        """Overrides vLLM's: the reply as server-sent events; a choice's last delta carries its ids."""
        record = Record()
        async with aclosing(self.supervision.results(results, record, grammar=_grammar(request))) as noted:
            events = super().chat_completion_stream_generator(request, noted, *args, **kwargs)
            async with aclosing(events):
                async for event in events:
                    record.check()
                    # In JSON a quote within a text is escaped, so no generated text looks like this.
                    if request._carries and '"finish_reason":"' in event:
                        event = with_carried(event, record)
                    yield event


class _Supervised:
    """The engine for vLLM's handlers of other requests than chats: of what was cut off they get an error."""

    def __init__(self, engine: Any, supervision: Supervision) -> None:
        self._engine = engine
        self._supervision = supervision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        record = Record()
        async with aclosing(self._supervision.results(self._engine.generate(*args, **kwargs), record)) as results:
            async for result in results:
                yield result
        record.check()


class Serving:
    """What the routes need of vLLM.

    Args:
        engine: vLLM's ``AsyncLLM``.
        config: The configuration.
        supervision: How to wait for the engine.

    Attributes:
        adapters: vLLM's handler of models and LoRA adapters.

    Raises:
        ServerStartError: The installed vLLM refuses the configuration.
    """

    def __init__(self, engine: Any, config: GenerationConfig, supervision: Supervision) -> None:
        self._engine = engine
        self._profile = SamplingProfile(config, engine.model_config.max_model_len)
        self._supervision = supervision
        self._carry = config.purpose == "rollout"
        try:
            self._build(engine, config)
        except Exception as error:
            raise ServerStartError(f"server: vLLM refuses its configuration: {words(error)}") from error

    def _build(self, engine: Any, config: GenerationConfig) -> None:
        section, path = config.server, config.model.path
        name = section.served_model_name or path
        load_template = found("load_chat_template", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")
        shared = {
            "engine_client": engine,
            "model_config": engine.model_config,
            "renderer": engine.renderer,
            "request_logger": None,
            "chat_template": load_template(section.chat_template),
            "chat_template_content_format": "auto",
            "enable_auto_tools": section.tool_parser is not None,
            "tool_parser": section.tool_parser,
            "reasoning_parser": section.reasoning_parser or "",
            "response_role": "assistant",
        }
        self.adapters = _made(OpenAIServingModels, engine_client=engine, base_model_paths=[BaseModelPath(name, path)])
        self._renderer = _made(Renderer, **shared)
        self._renderer.long_prompts = asyncio.Semaphore(1)
        shared |= {"models": self.adapters, "online_renderer": self._renderer}
        self._chat = _made(Chat, **shared)
        self._chat.supervision = self._supervision
        self._tokenization = _made(ServingTokenization, **shared)
        supervised = _Supervised(engine, self._supervision)
        self._completion = _made(OpenAIServingCompletion, **shared | {"engine_client": supervised})
        for handler in (self._chat, self._completion):
            # The sampling of generation_config.json is not the worker's (see `SamplingProfile`).
            handler.default_sampling_params = {}
            handler.override_max_tokens = None

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""
        return bool(self._engine.errored)

    async def models(self) -> Any:
        """Lists the model and its adapters."""
        return await self.adapters.show_available_models()

    async def chat(self, body: dict[str, Any], raw: Any) -> Any:
        """Completes a chat.

        Args:
            body: The request, as JSON gives it.
            raw: The HTTP request; vLLM reads headers of it.

        Returns:
            vLLM's reply or error, or the events of a stream as an asynchronous generator of texts.

        Raises:
            RequestError: The request is wrong, took too long, or was ended by the engine.
            EngineDiedError: A process of the engine died.
        """
        request = self._checked(ChatRequest, body)
        request._carries = request.return_token_ids if request.return_token_ids is not None else self._carry
        if request._prefix and request._prefix.token_ids:
            self._check_prefix(request, request._prefix.source)
        request._least = self._profile.least(request)
        return await self._generated(self._chat.create_chat_completion, request, raw)

    async def complete(self, body: dict[str, Any], raw: Any) -> Any:
        """Completes prompts, texts or ids; arguments, result and errors as for `chat`."""
        return await self._generated(self._completion.create_completion, self._checked(CompletionRequest, body), raw)

    async def tokenize(self, body: dict[str, Any], raw: Any) -> Any:
        """Turns messages, as a chat request would, or a ``prompt`` into ids."""
        form = TokenizeRequest if "messages" in body else TokenizeCompletionRequest
        return await self._tokenization.create_tokenize(self._checked(form, body), raw)

    async def detokenize(self, body: dict[str, Any], raw: Any) -> Any:
        """Turns ids into text."""
        return await self._tokenization.create_detokenize(self._checked(DetokenizeRequest, body), raw)

    def _checked(self, form: type[BaseModel], body: dict[str, Any]) -> Any:
        request = checked(form, without_carried(body))
        if isinstance(request, (ChatRequest, TokenizeRequest)):
            request._prefix = prefix_of(body)
        check_ids(request, int(self._engine.model_config.get_vocab_size()))
        return request

    def _check_prefix(self, request: ChatRequest, source: str) -> None:
        if self._renderer.use_harmony:
            raise RequestError("gpt-oss is not rendered by a chat template; no prefix can be required", parameter=source)
        if request.truncate_prompt_tokens is not None:
            raise RequestError("truncate_prompt_tokens would cut the required prefix; leave one of them out", parameter=source)

    async def _generated(self, create: Callable[..., Coroutine[Any, Any, Any]], request: Any, raw: Any) -> Any:
        self._profile.complete(request)
        try:
            return await create(request, raw)
        except EngineDeadError:
            async with self._supervision.watched():
                raise  # as the worker's error

    def error(self, error: Exception) -> RequestError:
        """Returns the error that the client of a request that failed gets."""
        if isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # vLLM packs what a request did wrong into it
        if isinstance(error, RequestError):
            return error
        if isinstance(error, QuirksError):
            return RequestError(str(error), status=next((status for kind, status in _STATUSES if isinstance(error, kind)), 503))
        if isinstance(error, RecursionError):
            return RequestError("a schema of the request is nested too deeply, or refers to itself without end")
        found: dict[str, Any] = self._chat.create_error_response(error).model_dump()["error"]
        if found["code"] >= 500:
            _LOG.error("a request failed: %s", words(error), exc_info=error)
        return RequestError(found["message"], status=found["code"], parameter=found.get("param"))


def _grammar(request: ChatRequest) -> str | None:
    """Returns the field that holds the grammar of the reply; None if it follows none."""
    if request.response_format is not None:
        return "response_format"
    return "structured_outputs" if request.structured_outputs is not None else None


def _ids(rendered: list[Any], prefix: Prefix) -> list[int]:
    if any(item.get("type", "token") != "token" for item in rendered):
        raise RequestError(
            f"{prefix.source}: only prompts without images, audio or video can keep a model's ids", parameter=prefix.source
        )
    return list(rendered[0]["prompt_token_ids"])


def _at_rest(message: Any) -> Any:
    """Pydantic reads lists in messages as iterators that can be gone through once; we render a message twice."""
    if not isinstance(message, dict):
        return message
    plain = (str, list, dict, int, float, type(None))
    return {key: value if isinstance(value, plain) else list(value) for key, value in message.items()}


def found(name: str, *modules: str) -> Any:
    """Returns what the installed vLLM has in the first of these modules."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ServerStartError(f"the installed vLLM has no {name} in {' or '.join(modules)}")


def _made(kind: type[Any], **arguments: Any) -> Any:
    """Makes one of vLLM's objects with those arguments that its constructor takes in the installed version."""
    return kind(**{name: value for name, value in arguments.items() if name in inspect.signature(kind).parameters})
