"""The official OpenAI client against a real server: what its users rely on."""

import asyncio

import openai
import pytest

from conftest import VARIANTS, golden, heldout

END = "<|im_end|>"


def messages(text):
    return [{"role": "system", "content": "Label the message."}, {"role": "user", "content": text}]


def test_models_lists_the_base_and_each_variant_with_its_parent(client, base_name):
    models = {model.id: model for model in client.models.list()}
    assert set(models) == {base_name, *VARIANTS}
    for name in VARIANTS:
        assert models[name].parent == base_name
        assert models[name].object == "model"


def test_one_model_is_retrieved_by_name(client):
    assert client.models.retrieve("route").id == "route"


def test_a_model_that_does_not_exist_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("nope")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nope", messages=messages("hello"))
    assert error.value.code == "model_not_found"


def test_the_base_answers_chats_as_transformers_does(client, base_name):
    for case in golden("tiny-base"):
        answer = client.chat.completions.create(
            model=base_name, messages=case["messages"], temperature=0, max_tokens=32)
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content == case["greedy_text"].removesuffix(END)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens == len(case["input_ids"])
        assert answer.usage.completion_tokens == len(case["greedy_ids"])
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_completions_take_the_rendered_prompt(client, base_name):
    case = golden("tiny-base")[0]
    answer = client.completions.create(model=base_name, prompt=case["prompt"], temperature=0, max_tokens=32)
    assert answer.choices[0].text == case["greedy_text"].removesuffix(END)
    assert answer.usage.prompt_tokens == len(case["input_ids"])


@pytest.mark.parametrize("task", VARIANTS)
def test_a_compressed_variant_knows_its_own_task(client, task):
    items = heldout(task, 20)
    right = 0
    for item in items:
        answer = client.chat.completions.create(model=task, messages=item["messages"], temperature=0, max_tokens=64)
        right += answer.choices[0].message.content.strip() == item["answer"]
    assert right >= 16, f"{right} of {len(items)} answers are right"


def test_streamed_chat_deltas_concatenate_to_the_whole_answer(client):
    request = dict(model="sql", messages=heldout("sql", 1)[0]["messages"], temperature=0, max_tokens=64)
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert len({c.id for c in chunks}) == 1
    assert all(c.usage is None for c in chunks), "usage is sent only when it is asked for"


def test_streamed_usage_comes_in_one_last_chunk_without_choices(client):
    request = dict(model="route", messages=messages("hello"), temperature=0, max_tokens=8)
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])


def test_streamed_completions_concatenate_to_the_whole_text(client, base_name):
    case = golden("tiny-base")[1]
    chunks = client.completions.create(
        model=base_name, prompt=case["prompt"], temperature=0, max_tokens=32, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == case["greedy_text"].removesuffix(END)


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_stop_string_is_sent(client, base_name, stream):
    case = golden("tiny-base")[0]
    text = case["greedy_text"].removesuffix(END)
    # It begins and ends inside tokens.
    stop = text[10:16]
    answer = client.completions.create(
        model=base_name, prompt=case["prompt"], temperature=0, max_tokens=32, stop=[stop], stream=stream)
    choices = [c.choices[0] for c in answer] if stream else [answer.choices[0]]
    assert "".join(c.text for c in choices) == text[:text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_max_tokens_ends_an_answer_with_length(client, base_name):
    case = golden("tiny-base")[0]
    answer = client.completions.create(model=base_name, prompt=case["prompt"], temperature=0, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_max_tokens_beyond_the_context_is_clamped_and_a_longer_prompt_refused(client):
    # https://github.com/vllm-project/vllm/issues/765
    short = dict(model="route", messages=messages("hello"), temperature=0)
    assert client.chat.completions.create(**short, max_tokens=10_000).choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="route", messages=messages("refund my order " * 1000), max_tokens=1)
    assert "512" in str(error.value), "the message names the limit"
    assert client.chat.completions.create(**short, max_tokens=8).choices[0].message.content


def test_a_field_of_the_wrong_type_is_named(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="route", messages=messages("hello"), extra_body={"temperature": "warm"})
    assert "temperature" in str(error.value)


def test_unknown_fields_are_ignored(client):
    answer = client.chat.completions.create(
        model="route", messages=messages("hello"), temperature=0, max_tokens=4, extra_body={"no_such_field": [1]})
    assert answer.choices[0].message.content


def test_one_seed_gives_one_answer(client, base_name):
    def ask(seed):
        answer = client.completions.create(
            model=base_name, prompt="hello", temperature=2.0, seed=seed, max_tokens=24)
        return answer.choices[0].text

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_log_probabilities_come_with_each_token(client, base_name):
    case = golden("tiny-base")[0]
    answer = client.chat.completions.create(
        model=base_name, messages=case["messages"], temperature=0, max_tokens=4, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4
    assert tokens[0].logprob == pytest.approx(case["top5_logprobs"][0], abs=0.05)
    for token in tokens:
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert token.logprob == token.top_logprobs[0].logprob, "greedy takes the most likely one"


def test_models_asked_at_the_same_time_answer_as_each_does_alone(server, client, base_name):
    requests = [
        dict(model=model, messages=item["messages"], temperature=0, max_tokens=48)
        for item in heldout("route", 4) + heldout("sql", 4)
        for model in (base_name, *VARIANTS)
    ]
    alone = [client.chat.completions.create(**request).choices[0].message.content for request in requests]

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(client.chat.completions.create(**request) for request in requests))

    assert [answer.choices[0].message.content for answer in asyncio.run(together())] == alone


def test_a_client_that_leaves_in_the_middle_does_no_harm(client, base_name):
    with client.completions.create(model=base_name, prompt="hello", max_tokens=400, stream=True) as stream:
        for _, _chunk in zip(range(2), stream):
            pass
    answer = client.chat.completions.create(model="route", messages=messages("hello"), temperature=0, max_tokens=8)
    assert answer.choices[0].message.content
