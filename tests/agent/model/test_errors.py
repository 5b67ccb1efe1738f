"""Refusals of requests that are too large, because of the prompt or because of the output limit."""

import time
from collections.abc import Mapping

import pytest

from agent.model.base import ModelRequest
from agent.model.errors import remedy_for, sentence_for
from agent.model.errors.answer import retry_after_seconds
from agent.model.errors.classifier import status_error, stream_error
from agent.model.wire import WireStyle
from hermes_state.errors import (
    AuthRejected,
    ContextOverflow,
    ImageFault,
    ImageRejected,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelUnavailable,
    OutputCapExceeded,
    QuotaExceeded,
)
from hermes_state.values import Image, MessageBody
from tests.agent.context.rows import human


def overflow(prompt: int | None, window: int | None) -> tuple[type[ModelError], dict[str, object]]:
    return ContextOverflow, {"prompt_tokens": prompt, "window": window}


def cap(most: int | None) -> tuple[type[ModelError], dict[str, object]]:
    return OutputCapExceeded, {"cap": most}


def image(fault: ImageFault, **limits: int) -> tuple[type[ModelError], dict[str, object]]:
    return ImageRejected, {"fault": fault, "max_bytes": None, "max_side": None, "max_count": None} | limits


def only(kind: type[ModelError]) -> tuple[type[ModelError], dict[str, object]]:
    return kind, {}


WORDINGS = {
    # ---- the prompt
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.": overflow(537_812, 131_072),
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length": overflow(40_000, 32_768),
    "input length and `max_tokens` exceed context limit: 200100 + 8192 > 200000, decrease it": overflow(
        200_100, 200_000
    ),
    "Your request exceeded model token limit: 8192": overflow(None, 8_192),
    "Your input exceeds the context window of this model. Please adjust your input.": overflow(None, None),
    "Input is too long for requested model.": overflow(None, None),
    "Please reduce the length of the messages or completion.": overflow(None, None),
    "maximum context length is " + "9" * 400: overflow(None, None),
    # a window that is stated minus the output
    "This model's maximum context length is 3 tokens. However, your request has 8 input tokens. Please reduce it.": (
        overflow(8, None)
    ),
    "Prompt too long: 9000 tokens over the limit of 8192": only(ContextOverflow),
    "Received message larger than max (5000000 vs. 4194304)": only(ContextOverflow),
    "Input (9000 tokens) is too long": only(ContextOverflow),
    "too many input characters": only(ContextOverflow),
    # ---- the output limit
    "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for it": cap(4_096),
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]": cap(8_192),
    "`max_tokens` must be less than or equal to `8192`, the maximum for this model": cap(8_192),
    "input length and `max_tokens` exceed context limit: 100000 + 128000 > 200000": cap(98_984),
    "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 4096 "
    "tokens and your request has 800 input tokens (4096 > 4096 - 800).": cap(3_272),
    "This model's maximum context length is 2048 tokens. However, your request has 8 input tokens plus 2045 "
    "'max_tokens'. Please reduce one or the other.": cap(2_024),
    "max_tokens is too large": cap(None),
    # ---- images
    "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes": image(ImageFault.TOO_LARGE, max_bytes=5_242_880),
    "Image size must be less than 10MB": image(ImageFault.TOO_LARGE, max_bytes=10_000_000),
    "Exceeded limit on max bytes per data-uri item: 4000000": image(ImageFault.TOO_LARGE, max_bytes=3_000_000),
    "image dimensions exceed max allowed size: 8000 pixels": image(ImageFault.TOO_LARGE, max_side=8_000),
    "image dimensions exceed max allowed size for many-image requests: 2000 pixels": image(
        ImageFault.TOO_LARGE, max_side=2_000
    ),
    "At most 4 image(s) may be provided in one prompt.": image(ImageFault.TOO_MANY, max_count=4),
    "At most 0 image(s) may be provided in one request.": image(ImageFault.UNSUPPORTED),
    "unknown variant `image_url`, expected `text`": image(ImageFault.UNSUPPORTED),
    "Could not process image": image(ImageFault.UNREADABLE),
    "The image format bmp is not supported": image(ImageFault.UNREADABLE),
    "height:1 or width:1 of the image must be larger than 10": image(ImageFault.UNREADABLE),
    "Too many images: 12 > 8": only(ImageRejected),
    "The number of images exceeds what one request may hold.": only(ImageRejected),
    "Multi-modal inputs are not supported here.": only(ImageRejected),
    "This is no VLM, and vision is not configured.": only(ImageRejected),
    "Unable to download the media resource during the data inspection process.": only(ImageRejected),
    "Error downloading the image: 404": only(ImageRejected),
    # ---- the account and the server
    "Model not activated: switch it on in the console.": only(AuthRejected),
    "This service is not opened for your account.": only(AuthRejected),
    "Access denied: invalid subscription key.": only(AuthRejected),
    "Your subscription has expired.": only(QuotaExceeded),
    "There is no active subscription.": only(QuotaExceeded),
    "The free trial quota of this model is exhausted.": only(QuotaExceeded),
    "dial tcp 10.0.0.1:80: connect: connection refused": only(ModelUnavailable),
    "Cannot connect to host inference.internal:8000": only(ModelUnavailable),
    "EngineDeadError: the engine has died": only(ModelUnavailable),
    "The model lab-vision does not exist.": only(ModelNotFound),
    # ---- others
    "Input must be longer than 0 characters.": only(ModelError),
    "The message must be larger than 0.": only(ModelError),
    "Failed to decode the JSON body: no content.": only(ModelError),
    "The image_generation tool is not supported.": only(ModelError),
    "Tool name too long, larger than max 64.": only(ModelError),
}


@pytest.mark.parametrize("message", WORDINGS)
def test_wordings_of_providers_have_their_kind_and_numbers(message: str) -> None:
    kind, facts = WORDINGS[message]
    error = status_error(400, {}, {"error": {"message": message}})
    assert (type(error), {name: getattr(error, name) for name in facts}) == (kind, facts)


REFUSED = "Request too large for model `lab` in organization `org` service tier `on_demand` on tokens per minute "


@pytest.mark.parametrize(
    ("message", "window"),
    [
        ("Request too large for lab (for limit lab) on tokens per min (TPM): Limit 30000, Requested 37313.", 30_000),
        (f"{REFUSED}(TPM): Limit 8000, Requested 34041, please reduce your message size and try again.", 8_000),
        ("Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000, Requested 7313.", None),
        ("Request too large for lab on tokens per min (TPM): Limit 30000, Requested 20000.", None),
    ],
)
def test_a_single_request_above_the_limit_per_minute_is_an_overflow(message: str, window: int | None) -> None:
    error = status_error(429, {}, {"message": message, "type": "tokens", "code": "rate_limit_exceeded"})
    assert type(error) is (ModelRateLimited if window is None else ContextOverflow)
    assert window is None or (error.window, error.is_of_account) == (window, True)


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize(
    ("message", "is_near"),
    [
        ("Invalid request: 40,000 units of input are above what is served here, namely 30,000.", True),
        ("Invalid request: the message takes 35000 of at most 32000 units.", True),
        ("Invalid request: the message takes 350000 of at most 320000 units.", False),
        ("Invalid request: too many seeds, at most 4.", False),
    ],
)
def test_a_number_near_the_prompt_size_reveals_an_unknown_overflow(status: int, message: str, is_near: bool) -> None:
    request = ModelRequest(system="", transcript=(human("word " * 36_000),), max_output_tokens=1_000)
    error = status_error(status, {}, {"error": {"message": message}}, request)
    assert type(error) is (ContextOverflow if is_near else ModelError)


@pytest.mark.parametrize("name", ["context_length_exceeded", "CONTEXT_LENGTH_EXCEEDED", "ContextLengthExceeded"])
def test_error_names_are_case_insensitive(name: str) -> None:
    assert isinstance(status_error(400, {}, {"error": {"message": "no", "code": name}}), ContextOverflow)
    assert isinstance(stream_error({"error": {"message": "no", "type": name}}), ContextOverflow)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no", "type": "invalid_request_error"}},
        {"error": {"message": "Unknown parameter: seed"}},
        {"error": {"message": "Provider returned error", "metadata": {"raw": '{"error": {"code": 400}}'}}},
    ],
)
def test_a_server_error_that_blames_the_request_is_not_retried(body: object) -> None:
    assert remedy_for(status_error(500, {}, body)).attempts == 1
    assert remedy_for(status_error(500, {}, {"error": {"message": "an error"}})).attempts > 1


def test_remaining_credit_lowers_the_output_limit_if_a_call_is_worthwhile() -> None:
    message = "You requested up to 8192 tokens, but can only afford {}."
    error = status_error(402, {}, {"error": {"message": message.format(2_000)}})
    assert (type(error), error.cap, error.is_of_model) == (OutputCapExceeded, 2_000, False)
    assert isinstance(status_error(402, {}, {"error": {"message": message.format(1_000)}}), QuotaExceeded)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Could not fetch the file behind the URL.", ImageFault.UNREADABLE),
        ("This is a text-only model.", ImageFault.UNSUPPORTED),
        ("Messages must hold text content only.", ImageFault.UNSUPPORTED),
    ],
)
def test_a_plain_text_error_blames_the_image_if_there_is_one(message: str, fault: ImageFault) -> None:
    image = human("look", body=MessageBody(images=(Image(attachment_id=1, mime="image/png", path="a.png"),)))
    style = WireStyle(image_urls={1: "data:image/png;base64,AA=="})
    for row, is_image in ((image, True), (human("look"), False)):
        request = ModelRequest(system="", transcript=(row,), max_output_tokens=1_000, style=style)
        error = status_error(400, {}, {"error": {"message": message}}, request)
        assert type(error) is (ImageRejected if is_image else ModelError)
        assert getattr(error, "fault", fault) is fault


@pytest.mark.parametrize(("estimated", "kind"), [(1_000, OutputCapExceeded), (9_000, ContextOverflow)])
def test_a_stated_total_is_interpreted_with_the_sent_prompt(estimated: int, kind: type[ModelError]) -> None:
    request = ModelRequest(system="", transcript=(human("word " * estimated),), max_output_tokens=8_000)
    error = status_error(400, {}, {"error": {"message": "model max length exceeded, max length:8192"}}, request)
    assert type(error) is kind


def test_a_missing_plan_is_distinguished_from_a_wrong_key() -> None:
    error = status_error(429, {}, {"error": {"message": "Your subscription plan does not include this model."}})
    assert "the plan" in sentence_for(error)
    assert "`api_key`" in sentence_for(status_error(401, {}, {"error": {"message": "Incorrect API key"}}))


SAID = "This model's maximum context length is 4096 tokens."
SHAPES = {
    "text": SAID,
    "detail": {"detail": SAID},
    "list": {"detail": [{"loc": ["body"], "msg": SAID}]},
    "message": {"object": "error", "message": {"detail": SAID}},
}


@pytest.mark.parametrize("shape", [*SHAPES, "stream"])
def test_an_overflow_is_recognised_in_every_json_shape(shape: str) -> None:
    error = stream_error({"message": SAID}) if shape == "stream" else status_error(400, {}, SHAPES[shape])
    assert (type(error), error.window) == (ContextOverflow, 4_096)


def test_a_proxys_error_page_is_never_an_overflow() -> None:
    assert isinstance(status_error(502, {}, "<p>maximum context length</p>"), ModelUnavailable)


@pytest.mark.parametrize("value", [True, -1, 0, 1.5, "4096", 10**12])
def test_implausible_numbers_are_ignored(value: object) -> None:
    error = status_error(400, {}, {"type": "exceed_context_size_error", "n_ctx": value, "n_prompt_tokens": value})
    assert (type(error), error.prompt_tokens, error.window) == (ContextOverflow, None, None)


@pytest.mark.parametrize(
    "body", [{"code": "²²²"}, {"code": "٤٢٩"}, {"status": "①"}, {"retry_after": 10**400}, {"retry_after": -(10**400)}]
)
def test_any_json_in_place_of_a_number_still_gives_an_error(body: Mapping[str, object]) -> None:
    assert isinstance(status_error(429, {}, {"error": body}), ModelRateLimited)


@pytest.mark.parametrize(
    ("until", "now", "seconds"),
    [
        ("Wed, 21 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:31 GMT", None),
        ("Wed, 21 Oct 2099 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:31 GMT", None),
        ("Wed, 21 Oct 2026 07:28:30 -0000", "Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("Wed, 21 Oct 2026 07:28:30 GMT", "today", None),
        ("Wed, 99 Oct 2026 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("Wed, 21 Oct 99999999999999999999 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("Wed, 21 Oct 2026 07:28:30 +9999999999999999", "Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_retry_after_may_be_a_date(until: str, now: str, seconds: float | None) -> None:
    assert retry_after_seconds({"retry-after": until, "date": now}) == seconds
    assert retry_after_seconds({"retry-after": until}) is None


def test_the_overflow_sentence_names_every_remedy() -> None:
    sentence = sentence_for(ContextOverflow("too long", window=4_096))
    assert all(command in sentence for command in ("/compress", "/new", "/history", "4,096"))


@pytest.mark.parametrize(
    "body",
    [
        *("{" * 200_000, "[1," * 60_000, "{ " * 90_000 + "}", " [" * 90_000, '{"a":' * 20_000),
        *("exceeds" * 600, "surpass" * 600, "input " * 700, "retry in 1s " * 400),
        *("too many images " * 250, "data-uri " * 450, "message larger " * 260, "error fetch " * 330, "input (a" * 500),
    ],
)
@pytest.mark.parametrize("is_held", [False, True])
def test_a_deep_or_long_error_answer_is_read_quickly(body: str, is_held: bool) -> None:
    started = time.process_time()
    status_error(400, {}, {"error": {"message": body}} if is_held else body)
    assert time.process_time() - started < 2.0, "it takes a few milliseconds"
