"""Drives an OpenAI-compatible server with the `openai` package.

    python openai_client.py --base-url http://127.0.0.1:8000/v1 --model NAME [--api-key KEY]

Prints one line per check; exits with 1 if any fails. It knows nothing of the model behind the server.
"""

import argparse
import concurrent.futures
import sys

import openai

parser = argparse.ArgumentParser()
parser.add_argument("--base-url", required=True, help="with the /v1")
parser.add_argument("--model", required=True)
parser.add_argument("--api-key", default="none")
parser.add_argument("--max-tokens", type=int, default=12)
parser.add_argument("--no-chat", action="store_true", help="the model has no chat template")
arguments = parser.parse_args()

MODEL = arguments.model
MAX_TOKENS = arguments.max_tokens
PROMPT = "A cenote is a natural pit, filled with"
MESSAGES = [{"role": "user", "content": "What is a cenote?"}]
# Seconds. A test that reaches it has failed.
PATIENCE = 120
client = openai.OpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0, timeout=PATIENCE)
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS, "seed": 1}
checks = []


def check(function):
    checks.append(function)
    return function


def chat_check(function):
    return function if arguments.no_chat else check(function)


def whole_completion(prompt=PROMPT, **changes):
    return client.completions.create(**{**GREEDY, "prompt": prompt, **changes})


@check
def models():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def completion():
    answer = whole_completion()
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert 0 < answer.usage.completion_tokens <= MAX_TOKENS
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


@check
def the_same_question_has_the_same_answer():
    assert whole_completion().choices[0].text == whole_completion().choices[0].text
    sampled = [whole_completion(temperature=1, top_p=0.9, seed=7).choices[0].text for _ in range(2)]
    assert sampled[0] == sampled[1]


@check
def without_the_pool_the_answer_is_the_same_and_nothing_is_cached():
    answer = whole_completion(extra_body={"use_pool": False})
    assert answer.choices[0].text == whole_completion().choices[0].text
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@check
def several_choices():
    answer = whole_completion(n=3, temperature=1, seed=7)
    alone = whole_completion(temperature=1, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].text == alone.choices[0].text
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens


@check
def several_prompts():
    answer = whole_completion([PROMPT, "Water", PROMPT])
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].text == answer.choices[2].text == whole_completion().choices[0].text


@check
def a_prompt_of_tokens():
    assert whole_completion([5, 6, 7, 8]).usage.prompt_tokens == 4


@check
def a_stop_text():
    text = whole_completion(max_tokens=MAX_TOKENS).choices[0].text
    if len(text) > 4:
        stop = text[len(text) // 2 :][:3]
        answer = whole_completion(stop=[stop])
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].text == text[: text.index(stop)]


@check
def streamed_completion():
    chunks = list(whole_completion(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    choices = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(choice.text for choice in choices) == whole_completion().choices[0].text
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1].finish_reason in ("length", "stop")


@chat_check
def chat():
    answer = client.chat.completions.create(**GREEDY, messages=MESSAGES)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert isinstance(answer.choices[0].message.content, str)
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


@chat_check
def chat_with_parts_and_all_roles():
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "What is a cenote?"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=3)
    assert answer.usage.completion_tokens <= 3


@chat_check
def streamed_chat():
    whole = client.chat.completions.create(**GREEDY, messages=MESSAGES)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**GREEDY, **options, messages=MESSAGES))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


@chat_check
def chat_stream_helper():
    try:
        with client.chat.completions.stream(**GREEDY, messages=MESSAGES) as stream:
            final = stream.get_final_completion()
    except openai.LengthFinishReasonError as cut:  # the helper's way to say finish_reason "length"
        final = cut.completion
    whole = client.chat.completions.create(**GREEDY, messages=MESSAGES)
    assert final.choices[0].message.content == whole.choices[0].message.content


@check
def a_stream_that_is_left_does_no_harm():
    stream = whole_completion(stream=True)
    next(iter(stream))
    stream.close()
    assert whole_completion().choices[0].text


@check
def many_at_once():
    expected = whole_completion().choices[0].text
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: whole_completion().choices[0].text, range(48)))
    assert answers == [expected] * 48


def refused(kind, param, code=None, **changes):
    try:
        whole_completion(**changes)
    except kind as error:
        assert error.param == param, f"param is {error.param!r}, not {param!r}"
        assert code is None or error.code == code, f"code is {error.code!r}, not {code!r}"
    else:
        raise AssertionError(f"{changes} was not refused")


@check
def refusals_name_the_field():
    refused(openai.NotFoundError, "model", "model_not_found", model="no-such-model")
    refused(openai.BadRequestError, "n", n=0)
    refused(openai.BadRequestError, "logprobs", logprobs=21)
    refused(openai.BadRequestError, "temperature", temperature=3)
    refused(openai.BadRequestError, "max_tokens", max_tokens=0)
    too_long = "context_length_exceeded"
    refused(openai.BadRequestError, "max_tokens", too_long, max_tokens=10**9)
    refused(openai.BadRequestError, "prompt", prompt=[])
    refused(openai.BadRequestError, "prompt", too_long, prompt="x, " * 200_000)
    refused(openai.BadRequestError, "prompt", too_long, prompt="x, " * 200_000, stream=True)


failures = 0
for function in checks:
    name = function.__name__.replace("_", " ")
    try:
        function()
        print(f"ok      {name}")
    except Exception as error:  # every check is to be reported, whatever it raises
        failures += 1
        print(f"FAILED  {name}: {type(error).__name__}: {error}")
sys.exit(1 if failures else 0)
