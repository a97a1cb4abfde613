#!/usr/bin/env python3
"""Checks a running server with the official OpenAI client, whatever models it serves.

    python3 tests/clients/openai_client.py http://127.0.0.1:8080 BASE [VARIANT ...]

Prints a line for each check that passed; ends with exit code 1 at the first that did not. Answers are compared with
answers of the same server (alone and together, streamed and whole), so nothing about the models has to be known.
"""

import argparse
import concurrent.futures
import math
import uuid

import openai

QUESTIONS = [
    "Count the rows of the table orders.",
    "My parcel has not arrived yet, where is it?",
    "The meeting is on the third of May 2024.",
    "Say hello to Ana and to Bo.",
]


def messages(text):
    return [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]


def ask(client, model, text, **fields):
    """A greedy answer: text, reason and tokens."""
    request = dict(model=model, messages=messages(text), temperature=0, max_tokens=24) | fields
    answer = client.chat.completions.create(**request)
    choice = answer.choices[0]
    return choice.message.content, choice.finish_reason, answer.usage.completion_tokens


def refused(kind, call, code, param=None):
    """The error that `call` must raise."""
    try:
        call()
    except kind as error:
        assert error.code == code, f"code {error.code!r}, expected {code!r}"
        assert param is None or error.param == param, f"param {error.param!r}, expected {param!r}"
        return error
    raise AssertionError(f"expected {kind.__name__} with code {code}")


def models(client, base, variants):
    listed = {model.id: model for model in client.models.list()}
    assert set(listed) >= {base, *variants}, f"listed: {sorted(listed)}"
    assert listed[base].parent is None
    for variant in variants:
        assert listed[variant].parent == base
        assert client.models.retrieve(variant).id == variant


def chat(client, base, variants):
    for model in [base, *variants]:
        answer = client.chat.completions.create(
            model=model, messages=messages(QUESTIONS[0]), temperature=0, max_tokens=8)
        assert answer.model == model and answer.object == "chat.completion"
        assert answer.id.startswith("chatcmpl-")
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason in ("stop", "length")
        usage = answer.usage
        assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 8
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def completions(client, base, variants):
    for model in [base, *variants]:
        answer = client.completions.create(model=model, prompt=QUESTIONS[:2], temperature=0, max_tokens=6, n=2)
        assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        # Greedy choices of one prompt are equal, and equal to the prompt's answer alone.
        for at, question in enumerate(QUESTIONS[:2]):
            alone = client.completions.create(model=model, prompt=question, temperature=0, max_tokens=6)
            assert answer.choices[2 * at].text == answer.choices[2 * at + 1].text == alone.choices[0].text


def streaming(client, base, variants):
    for model in [base, *variants]:
        whole = ask(client, model, QUESTIONS[1])
        for usage_wanted in (False, True):
            options = {"stream_options": {"include_usage": True}} if usage_wanted else {}
            chunks = list(client.chat.completions.create(
                model=model, messages=messages(QUESTIONS[1]), temperature=0, max_tokens=24, stream=True, **options))
            if usage_wanted:
                last = chunks.pop()
                assert last.choices == [] and last.usage.completion_tokens == whole[2]
            assert all(chunk.usage is None for chunk in chunks)
            assert chunks[0].choices[0].delta.role == "assistant"
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole[0]
            assert chunks[-1].choices[0].finish_reason == whole[1]
            assert len({chunk.id for chunk in chunks}) == 1
        text = client.completions.create(model=model, prompt=QUESTIONS[1], temperature=0, max_tokens=12)
        chunks = client.completions.create(model=model, prompt=QUESTIONS[1], temperature=0, max_tokens=12, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == text.choices[0].text


def log_probabilities(client, base, variants):
    for model in [base, *variants]:
        answer = client.chat.completions.create(
            model=model, messages=messages(QUESTIONS[2]), temperature=0, max_tokens=4, logprobs=True, top_logprobs=3)
        tokens = answer.choices[0].logprobs.content
        assert 0 < len(tokens) <= answer.usage.completion_tokens
        for token in tokens:
            tops = [top.logprob for top in token.top_logprobs]
            assert len(tops) == 3 and tops == sorted(tops, reverse=True)
            assert token.logprob <= 0 and math.isclose(token.logprob, tops[0], abs_tol=1e-6)


def seeds(client, base, variants):
    def sample(seed):
        answer = client.completions.create(
            model=base, prompt=QUESTIONS[3], temperature=2.0, seed=seed, max_tokens=16)
        return answer.choices[0].text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def errors(client, base, variants):
    create = client.chat.completions.create
    hello = messages("hello")
    unknown = f"no-such-model-{uuid.uuid4()}"
    refused(openai.NotFoundError, lambda: create(model=unknown, messages=hello), "model_not_found")
    refused(openai.NotFoundError, lambda: client.models.retrieve(unknown), "model_not_found")
    refused(openai.NotFoundError, lambda: client.completions.create(model=unknown, prompt="a"), "model_not_found")
    refused(openai.BadRequestError, lambda: create(model=base, messages=hello, temperature="hot"),
            "invalid_type", "temperature")
    refused(openai.BadRequestError, lambda: create(model=base, messages=hello, temperature=9),
            "invalid_value", "temperature")
    refused(openai.BadRequestError, lambda: create(model=base, messages=[]), "invalid_value", "messages")
    refused(openai.BadRequestError, lambda: create(model=base, messages=hello, tools=[
        {"type": "function", "function": {"name": "f", "parameters": {}}}]), "unsupported_parameter", "tools")
    assert ask(client, base, "hello", max_tokens=2, extra_body={"no_such_field": 1})[2] <= 2


def context(client, base, variants):
    limit = next(model.max_model_len for model in client.models.list() if model.id == base)
    error = refused(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=base, messages=messages("hello " * limit), max_tokens=1),
        "context_length_exceeded", "messages")
    assert str(limit) in error.message
    # Beyond what is left is not an error but clamped, and the server goes on.
    answer = client.completions.create(
        model=base, prompt="hello", temperature=0, max_tokens=10 * limit, stop=[" ", "."])
    assert answer.usage.total_tokens <= limit


def together(client, base, variants):
    asked = [(model, text) for text in QUESTIONS for model in (base, *variants)]
    alone = [ask(client, model, text) for model, text in asked]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda pair: ask(client, *pair), asked)) == alone


CHECKS = [models, chat, completions, streaming, log_probabilities, seeds, errors, context, together]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="address of the server, without /v1")
    parser.add_argument("base", help="name of the base model")
    parser.add_argument("variants", nargs="*", help="names of variants")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    client = openai.OpenAI(base_url=f"{args.url.rstrip('/')}/v1", api_key=args.api_key, max_retries=0, timeout=300)
    for check in CHECKS:
        check(client, args.base, args.variants)
        print(f"ok  {check.__name__.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    main()
