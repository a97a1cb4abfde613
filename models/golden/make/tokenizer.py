"""Token ids of texts that tokenizers get wrong, as transformers computes them.

PreTrainedTokenizerFast reads tokenizer.json as it stands. AutoTokenizer of transformers 5 does not: it goes by the
model's type and gives the tiny family, as a Qwen2, a normalizer (NFC) that its file does not have and that it was not
trained with.

    pip install transformers
    python3 models/golden/make/tokenizer.py models/tiny/base SMOLLM2_DIRECTORY > models/golden/tokenizer.json
"""

import json
import sys

from transformers import PreTrainedTokenizerFast

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\t\ttabs\t",
    "Hello, world!",
    "  two leading spaces and two trailing  ",
    "客单价",
    "😀 and 👨‍👩‍👧‍👦 and 🇩🇪",
    "cafe\u0301 versus café",
    "نص عربي، עברית, हिन्दी, ไทย",
    "\u2028line\u2029paragraph\u00a0nbsp\u200bzero\ufeffbom",
    "\ufffd",
    "1234567890 3.14159 1,000,000 0x1F",
    "don't can't I'LL we've THEY'D",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n",
    "SELECT * FROM `t` WHERE a >= 10 AND b <> 'x''y';",
    '{"a": [1, 2.5, null], "b\\n": "\\u00e9"}',
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|im_end|>text <|im_end|> text",
    "<|im_start|",
    "<|endoftext|><|endoftext|>",
    "a" * 300,
    "aé" * 40 + "\r\n" + "ß" * 10,
    "x\x00y\x01z\x7f",
]


def case(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    return {
        "text": text,
        "ids": ids,
        "decoded": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
    }


result = {}
for name, directory in zip(["tiny", "smollm2"], sys.argv[1:]):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    result[name] = [case(tokenizer, text) for text in TEXTS]
print(json.dumps(result, indent=None, separators=(",", ":")))
