"""The official OpenAI client against a server of the tiny family: the checks of `openai_client.py`, and those for which
the right answers are known, from transformers or from the tasks."""

import openai
import pytest

import openai_client
from conftest import VARIANTS, golden, heldout

END = "<|im_end|>"


@pytest.mark.parametrize("check", openai_client.CHECKS, ids=lambda check: check.__name__)
def test_any_server(client, base_name, check):
    check(client, base_name, list(VARIANTS))


def test_nothing_else_is_listed(client, base_name):
    assert {model.id for model in client.models.list()} == {base_name, *VARIANTS}


def test_the_base_answers_chats_as_transformers_does(client, base_name):
    for case in golden("tiny-base"):
        answer = client.chat.completions.create(
            model=base_name, messages=case["messages"], temperature=0, max_tokens=32)
        assert answer.choices[0].message.content == case["greedy_text"].removesuffix(END)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens == len(case["input_ids"])
        assert answer.usage.completion_tokens == len(case["greedy_ids"])


def test_log_probabilities_are_those_of_transformers(client, base_name):
    for case in golden("tiny-base"):
        answer = client.chat.completions.create(
            model=base_name, messages=case["messages"], temperature=0, max_tokens=1, logprobs=True, top_logprobs=5)
        top = answer.choices[0].logprobs.content[0].top_logprobs
        assert [token.logprob for token in top] == pytest.approx(case["top5_logprobs"], abs=0.05)


def test_completions_take_the_rendered_prompt(client, base_name):
    for case in golden("tiny-base"):
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


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_stop_string_is_sent(client, base_name, stream):
    # https://github.com/vllm-project/vllm/issues/3574
    case = golden("tiny-base")[0]
    text = case["greedy_text"].removesuffix(END)
    # It begins and ends inside tokens.
    stop = text[10:16]
    answer = client.completions.create(
        model=base_name, prompt=case["prompt"], temperature=0, max_tokens=32, stop=[stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == text[:text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_max_tokens_ends_an_answer_with_length(client, base_name):
    case = golden("tiny-base")[0]
    answer = client.completions.create(model=base_name, prompt=case["prompt"], temperature=0, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_a_client_that_leaves_in_the_middle_does_no_harm(client, base_name):
    with client.completions.create(model=base_name, prompt="hello", max_tokens=400, stream=True) as stream:
        for _, _chunk in zip(range(2), stream):
            pass
    case = golden("tiny-base")[0]
    answer = client.completions.create(model=base_name, prompt=case["prompt"], temperature=0, max_tokens=32)
    assert answer.choices[0].text == case["greedy_text"].removesuffix(END)


def test_an_answer_after_a_refusal_is_unharmed(client, base_name):
    # https://github.com/vllm-project/vllm/issues/765
    case = golden("tiny-base")[0]
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=base_name, prompt="hello " * 2000, max_tokens=1)
    answer = client.completions.create(model=base_name, prompt=case["prompt"], temperature=0, max_tokens=10_000)
    assert answer.choices[0].text == case["greedy_text"].removesuffix(END)
