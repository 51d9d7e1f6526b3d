"""The one place that knows vLLM's serving classes: ours under theirs, found where the installed version has them.

Imports vLLM to derive from its classes, so import it after the plan is in force. Written for 0.26 to 0.33 and run on 0.32;
what is only there for 0.26 follows its sources and has not been run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pydantic import PrivateAttr, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from quirks_core.config import ServerSection
from quirks_core.errors import QuirksError, words
from worker.server.errors import RequestError, ServerStartError
from worker.server.prefix_tokens import Prefix, prefix_of, replace_prefix_tokens, without_carried
from worker.server.profile import SamplingProfile
from worker.server.record import Record, recorded, with_carried
from worker.server.streams import problem

#: How many problems of one request its error lists.
_SHOWN = 5


class ChatRequest(ChatCompletionRequest):  # type: ignore[misc]
    """A chat request that may say which ids its prompt starts with.

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
        """Asks the engine for the sampled tokens' logprobs too if the message is to carry them."""
        self.min_tokens: int = self.min_tokens or min(self._least, max_tokens)
        params = super().to_sampling_params(max_tokens, *args, **kwargs)
        if params.logprobs is None and (self.logprobs or self._carries) and not self.logprob_token_ids:
            params.logprobs = 0
        return params

    def build_tok_params(self, model_config: Any) -> Any:
        """Leaves room to the prompt, not to the reply: that one is cut to what remains."""
        params = replace(super().build_tok_params(model_config), max_output_tokens=0)
        # Another rendering than the one that counts; the final ids are checked instead.
        return replace(params, max_total_tokens=None) if self._prefix else params


class TokenizeRequest(TokenizeChatRequest):  # type: ignore[misc]
    """A tokenize request with messages that may say which ids the prompt starts with."""

    required_prefix_token_ids: list[int] | None = None

    _prefix: Prefix | None = PrivateAttr(default=None)


class Renderer(OnlineRenderer):  # type: ignore[misc]
    """Renders a conversation with the chat template, then puts the ids that the model produced in their place."""

    async def preprocess_chat(self, request: Any, messages: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """Overrides vLLM's; called for chat and for tokenize requests.

        Raises:
            RequestError: The template fails on the messages, the prefix does not fit them, or the prompt fills the context.
        """
        try:
            messages = [_at_rest(message) for message in messages]
            conversation, inputs = await super().preprocess_chat(request, messages, *args, **kwargs)
            prefix: Prefix | None = getattr(request, "_prefix", None)
            if prefix is not None and prefix.token_ids:
                shorter = request.model_copy(update={"add_generation_prompt": False, "continue_final_message": False})
                kwargs["parser"] = None  # it would adjust the request a second time
                _, rendered = await super().preprocess_chat(shorter, messages[: prefix.messages], *args, **kwargs)
                self._keep(prefix, rendered, inputs)
        except Exception as error:
            if isinstance(error, QuirksError) or type(error).__module__.startswith("vllm."):
                raise
            # Templates are programs; whatever they stumble over, it is the client's messages.
            raise RequestError(f"the messages cannot be rendered: {words(error)}", parameter="messages") from error
        if isinstance(request, ChatRequest):
            self._leave_room(inputs)
        return conversation, inputs

    def _keep(self, prefix: Prefix, rendered: list[Any], inputs: list[Any]) -> None:
        if any(item.get("type", "token") != "token" for item in (*rendered, *inputs)):
            raise RequestError(f"{prefix.source}: only prompts of text alone can keep a model's ids", parameter=prefix.source)
        tokenizer = self.renderer.get_tokenizer()
        template_prefix = list(rendered[0]["prompt_token_ids"])
        inputs[0]["prompt_token_ids"] = replace_prefix_tokens(
            tokenizer,
            prefix.token_ids,
            template_prefix,
            inputs[0]["prompt_token_ids"],
            end_token_id=self._end_of_turn(tokenizer, template_prefix),
        )
        inputs[0].pop("prompt", None)  # the text of other ids

    def _end_of_turn(self, tokenizer: Any, template_prefix: list[int]) -> int | None:
        """Finds what the template ends a turn with: mostly the end of sequence, in some families another stop token."""
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
    """Chat completions whose message carries the ids and logprobs that it is made of."""

    async def chat_completion_full_generator(self, request: ChatRequest, results: Any, *args: Any, **kwargs: Any) -> Any:
        """Overrides vLLM's: the whole reply at once."""
        record = Record()
        async with aclosing(recorded(results, record)) as noted:
            reply = await super().chat_completion_full_generator(request, noted, *args, **kwargs)
        for choice in getattr(reply, "choices", ()) if request._carries else ():
            for name, value in record.carried(choice.index, choice.routed_experts).items():
                setattr(choice.message, name, value)
        return reply

    async def chat_completion_stream_generator(
        self, request: ChatRequest, results: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[str, None]:
        """Overrides vLLM's: the reply as server-sent events; a choice's last delta carries its ids."""
        record = Record()
        async with aclosing(recorded(results, record)) as noted:
            events = super().chat_completion_stream_generator(request, noted, *args, **kwargs)
            async with aclosing(events):
                async for event in events:
                    # In JSON a quote within a text is escaped, so no generated text looks like this.
                    if request._carries and '"finish_reason":"' in event:
                        event = with_carried(event, record)
                    yield event


class Serving:
    """What the routes need of vLLM.

    Args:
        engine: vLLM's ``AsyncLLM``.
        section: The server's configuration.
        name: The model's name in requests and replies.
        path: The model's folder or hub id.
        profile: How requests are sampled.
        carry: Messages carry ids and logprobs unless a request says no; otherwise only if it asks for them.

    Raises:
        ServerStartError: The installed vLLM refuses the configuration.
    """

    def __init__(
        self, engine: Any, section: ServerSection, *, name: str, path: str, profile: SamplingProfile, carry: bool
    ) -> None:
        self._engine = engine
        self._profile = profile
        self._carry = carry
        try:
            self._build(engine, section, name, path)
        except Exception as error:
            raise ServerStartError(f"server: vLLM refuses its configuration: {words(error)}") from error

    def _build(self, engine: Any, section: ServerSection, name: str, path: str) -> None:
        load_template = _found("load_chat_template", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")
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
        self._models = _made(OpenAIServingModels, engine_client=engine, base_model_paths=[BaseModelPath(name, path)])
        self._renderer = _made(Renderer, **shared)
        shared |= {"models": self._models, "online_renderer": self._renderer}
        self._chat = _made(Chat, **shared)
        # What generation_config.json says of sampling is another profile than ours (see `SamplingProfile`).
        self._chat.default_sampling_params = {}
        self._chat.override_max_tokens = None
        self._tokenization = _made(ServingTokenization, **shared)

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""
        return bool(self._engine.errored)

    async def models(self) -> Any:
        """Lists the one model."""
        return await self._models.show_available_models()

    async def chat(self, body: dict[str, Any], raw: Any) -> Any:
        """Completes a chat.

        Args:
            body: The request, as JSON gives it.
            raw: The HTTP request; vLLM reads headers of it.

        Returns:
            vLLM's reply or error, or the events of a stream as an asynchronous generator of texts.

        Raises:
            RequestError: The request is wrong.
        """
        request = _checked(ChatRequest, without_carried(body))
        request._prefix = prefix_of(body)
        request._carries = request.return_token_ids if request.return_token_ids is not None else self._carry
        if request._prefix and request._prefix.token_ids:
            self._check_prefix(request)
        self._check_ids(request)
        request._least = self._profile.least(request)
        self._profile.complete(request)
        return await self._chat.create_chat_completion(request, raw)

    async def tokenize(self, body: dict[str, Any], raw: Any) -> Any:
        """Turns messages, as a chat request would, or a ``prompt`` into ids."""
        if "messages" not in body:
            return await self._tokenization.create_tokenize(_checked(TokenizeCompletionRequest, body), raw)
        request = _checked(TokenizeRequest, without_carried(body))
        request._prefix = prefix_of(body)
        self._check_ids(request)
        return await self._tokenization.create_tokenize(request, raw)

    async def detokenize(self, body: dict[str, Any], raw: Any) -> Any:
        """Turns ids into text."""
        request = _checked(DetokenizeRequest, body)
        self._check_ids(request)
        return await self._tokenization.create_detokenize(request, raw)

    def error(self, error: Exception) -> dict[str, Any]:
        """Returns the body of the reply to a request that failed, its ``code`` the HTTP status."""
        if isinstance(error, EngineGenerateError) and error.__cause__ is not None:
            error = error.__cause__  # vLLM packs what a request did wrong into it
        if isinstance(error, EngineDeadError):
            return problem(f"the engine is dead: {words(error)}; restart the worker", status=503)
        found: dict[str, Any] = self._chat.create_error_response(error).model_dump()
        return problem(found["error"]["message"], status=found["error"]["code"], parameter=found["error"].get("param"))

    def _check_prefix(self, request: ChatRequest) -> None:
        source = request._prefix.source if request._prefix else None
        if self._renderer.use_harmony:
            raise RequestError("gpt-oss is not rendered by a chat template; no prefix can be required", parameter=source)
        if request.truncate_prompt_tokens is not None:
            raise RequestError("truncate_prompt_tokens would cut the required prefix; leave one of them out", parameter=source)

    def _check_ids(self, request: Any) -> None:
        """Refuses ids that the model's embedding has no row for, before they get anywhere near the engine."""
        size = self._engine.model_config.get_vocab_size()
        prefix: Prefix | None = getattr(request, "_prefix", None)
        given = {prefix.source: prefix.token_ids} if prefix else {}
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens"):
            given[name] = getattr(request, name, None) or ()
        given["logit_bias"] = tuple(_integer(key, "logit_bias") for key in getattr(request, "logit_bias", None) or ())
        for name, ids in given.items():
            if (wrong := next((token for token in ids if not 0 <= token < size), None)) is not None:
                raise RequestError(f"{name}: token id {wrong} is outside the vocabulary of {size} ids", parameter=name)


def _checked(form: type[Any], body: dict[str, Any]) -> Any:
    """Validates a request.

    Raises:
        RequestError: It does not have that form. vLLM's own validators stumble over some shapes; that is no other case.
    """
    try:
        return form.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        told = "; ".join(f"{_path(item['loc'])}: {item['msg']}" for item in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise RequestError(f"the request is not valid: {told}{more}", parameter=_path(found[0]["loc"])) from None
    except Exception as error:
        raise RequestError(f"the request is not valid: {words(error)}", parameter=getattr(error, "parameter", None)) from error


def _path(location: tuple[int | str, ...]) -> str:
    """A field as the client knows it: without pydantic's names for branches and wrappers."""
    return ".".join(str(part) for part in location if not any(mark in str(part) for mark in "[]() ")) or "body"


def _integer(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"{name}: {text!r:.80} is no token id", parameter=name) from None


def _at_rest(message: Any) -> Any:
    """Pydantic reads lists in messages as iterators that can be gone through once; we render a message twice."""
    if not isinstance(message, dict):
        return message
    plain = (str, list, dict, int, float, type(None))
    return {key: value if isinstance(value, plain) else list(value) for key, value in message.items()}


def _found(name: str, *modules: str) -> Callable[..., Any]:
    """Returns what the installed vLLM has in the first of these modules."""
    for module in modules:
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        return found
    raise ServerStartError(f"the installed vLLM has no {name} in {' or '.join(modules)}")


def _made(kind: type[Any], **arguments: Any) -> Any:
    """Makes one of vLLM's objects with those arguments that its constructor takes in the installed version."""
    return kind(**{name: value for name, value in arguments.items() if name in inspect.signature(kind).parameters})
