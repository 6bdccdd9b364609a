#!/usr/bin/env python3
"""Write tests/golden/tokenizer_vectors.json: texts and their ids according to the Python package `tokenizers`.

Run from the repository root: python3 tools/make_tokenizer_vectors.py [--tiny-vectors FILE]
The output depends only on the fixed seed, models/tiny-py/tokenizer.json and the versions of tokenizers and Python.
"""
import argparse
import json
import pathlib
import random
import unicodedata

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tiny-py/tokenizer.json"
OUTPUT = ROOT / "tests/golden/tokenizer_vectors.json"
NEXT_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
           "<|fim_prefix|>", "<|file_sep|>", "<|", "|>", "<", ">", "im_start", "think", "<<", "</", " ", "\n", "\u0338"]
NASTY_BYTES = (0x00, 0x41, 0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, 0xF0, 0xF4, 0xFF)

FIXED = [
    "", " ", "a", "\0", "a\0b\0\0 \0", "Hello, world!", "你好，Jetson Orin。", "用一句话解释 CUDA 是什么。",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n", "for (int i = 0; i < n; ++i) { sum += a[i]; }\r\n",
    "#include <vector>\ntemplate <class T> auto f(T&& t) -> decltype(t.x());", "SELECT * FROM t WHERE a='it''s';",
    "<html><body class=\"x\">&nbsp;</body></html>", "x = {'a': [1, 22, 333], \"b\": None}",
    "https://example.org/a?b=c&d=%20#e",
    "I'm you're we've he'll she'd it's don't I'M YOU'RE WE'VE HE'LL SHE'D IT'S DON'T 'ſ 'ſt x'ſ ’s",
    "3.14159 1,000,000 0xDEADBEEF 1e-9 ½ ² Ⅷ ٣٤٥ १२३ ๑๒๓ 𝟙𝟚 ①②", "日本語のテキスト、ひらがなとカタカナ。ﾊﾝｶｸ ｶﾞ",
    "한국어 텍스트 각 각 각 ᄀ ᅡ ᆨ ᅟ", "العربية مَرْحَبًا עִבְרִית हिन्दी ภาษาไทย ქართული Ελληνικά ΐ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷🇺 👍🏽 ☺️ 1️⃣ #️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "e\u0301 é a\u0323\u0307 a\u0307\u0323 ḍ̇ \u0344 Å Å Ω Ω ﬁ ﬆ \u0340",
    "q\u0307\u0323x \u0301\u0301 1\u0301 .\u0301 \u0301a \n\u0301 \u20e3", "का कि कु के नमस्ते क़ क़",
    "\ufb1d \u2adc \u0958 \u1e9b\u0323",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|><|im_start|>x<|im_end|",
    "<think><think</think>>", "a<|endoftext|>b <|endoftext|> c", "<>\u0338<think>\u0338e<think>\u0301",
    "      \n   \t x\r\n\r\n  y  \r\r\n z   ", "a\u180eb \u180e \u180ex",
    "a\u0085b \u0085 \u2028\u2028x\u2029 \u3000\u3000x",
    "\ufeffbom \u200b \u200d \u00ad", "\U0010ffff \ufffd \uffff \ue000", "a" * 300, " " * 300, "\n" * 300,
    " \n" * 100 + "x",
    "ab" * 200, "=" * 200 + "\n", "\u0301" * 100, "e" + "\u0301\u0323" * 60, "가" * 50,
]


def stable_code_points():
    """Assigned code points on which all Unicode versions involved agree. tokenizers normalizes with the tables of
    Unicode 9, which lack the combining classes of 59 marks added later; whatever Python's unicodedata (14.0) does not
    know is left out too, because PCRE2 and utf8proc may have other versions."""
    nfc = tokenizers.normalizers.NFC()
    points = []
    for point in range(0x110000):
        c = chr(point)
        probe = f"{c}\u0301{c}\u0323{c}"
        if unicodedata.category(c) in ("Cn", "Cs", "Co"):
            continue
        if nfc.normalize_str(probe) == unicodedata.normalize("NFC", probe):
            points.append(point)
    return points


def alphabets(points):
    chars = [chr(p) for p in points]
    of = lambda *categories: [c for c in chars if unicodedata.category(c) in categories]
    marks = of("Mn", "Mc", "Me")
    return {
        "any": chars,
        "letters": of("Lu", "Ll", "Lt", "Lm", "Lo") + list("aB \n"),
        "white": list(WHITE) + list("\x1c\x1d\x1e\x1f\u180e\u200b\u2060\ufeffa1."),
        "breaks": list("\r\n\r\n \t a."),
        "contractions": list("''''’sSſtTrReEvVmMlLdD a\n"),
        "marks": list("aeioAEOnqक1. \n") * 12 + marks,
        "latin marks": list("aeiouAEsSdDq ") + [chr(p) for p in range(0x300, 0x345)],
        "jamo": list("가각힣 \u0301") + [chr(p) for p in (*range(0x1100, 0x1120), *range(0x1160, 0x1180),
                                                      *range(0x11A7, 0x11C4))],
        "digits": of("Nd", "Nl", "No") + list("0123456789.,- ") * 4,
        "emoji": list("👩👨👧🏳🌈❤☺👍🇩🇪🇫🇷🏽🏿1#*\u200d\u200d\ufe0f\ufe0f\u20e3 a"),
        "cjk": [chr(p) for p in range(0x4E00, 0x4F00)] + list("、。「」ー々〆あいうアイウ㌔ 豈a1\n"),
        "code": list("abcxyz_ __  \n\n    \t(){}[]<>=+-*/.,:;'\"#@!?|&%$^~`\\019"),
        "words": list("etaoinshrdlu  ETA'.,\n"),
        "control": [chr(p) for p in (*range(0x21), *range(0x7F, 0xA1))] + list("ab"),
        "special": SPECIAL,
    }


def random_text(rng, alphabet):
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, rng.choice((4, 12, 30)))))


def random_bytes(rng):
    """UTF-8 with bytes cut out, changed or put in."""
    data = bytearray(random_text(rng, "aé你👍 \n<\u0301").encode())
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data) + 1)
        data[at:at + rng.randint(0, 2)] = bytes(rng.choice(NASTY_BYTES) for _ in range(rng.randint(0, 2)))
    return bytes(data)


def sweep_text(point):
    """A code point next to a letter, a digit, a space, a mark, a line break, an apostrophe and itself."""
    c = chr(point)
    return f"a{c}b1{c} {c}\u0301{c}{c}\n'{c} \u0323\u0301{c}."


def hash_ids(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        value = (value ^ i) * 0x100000001B3 & (1 << 64) - 1
    return f"{value:016x}"


def sweep(points, oracles):
    """One entry for each 256 code points: their ranges (first, last, first, last...) and a hash of ids per regex."""
    blocks = {}
    for point in points:
        ranges = blocks.setdefault(point >> 8, [])
        if ranges and ranges[-1] == point - 1:
            ranges[-1] = point
        else:
            ranges += [point, point]
    result = []
    for block, ranges in blocks.items():
        text = "".join(sweep_text(p) for p in points_of(ranges))
        result.append([ranges, *(hash_ids(ids_of(tokenizer, text)) for tokenizer in oracles)])
    return result


def points_of(ranges):
    for first, last in zip(ranges[::2], ranges[1::2]):
        yield from range(first, last + 1)


def oracle(regex=None):
    data = json.loads(MODEL.read_text())
    if regex:
        data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def one_item_a_line(sections):
    def section(value):
        if isinstance(value, str):
            return json.dumps(value)
        return "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in value) + "\n]"

    return "{\n" + ",\n".join(f'"{name}": {section(value)}' for name, value in sections.items()) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny-vectors", type=pathlib.Path,
                        help="vectors made with the model (default: keep those of the output file)")
    args = parser.parse_args()

    qwen35, qwen3_next, plain = oracle(), oracle(regex=NEXT_REGEX), oracle()
    plain.encode_special_tokens = True

    rng = random.Random(20)
    points = stable_code_points()
    letters = alphabets(points)
    texts = FIXED + [random_text(rng, alphabet) for alphabet in letters.values() for _ in range(270)]
    next_texts = FIXED + [random_text(rng, alphabet) for alphabet in letters.values() for _ in range(40)]
    special_texts = [t for t in FIXED if "<" in t] + [random_text(rng, SPECIAL) for _ in range(100)]
    bad = [bytes([b]) for b in range(0x80, 0x100)] + [random_bytes(rng) for _ in range(400)]
    if args.tiny_vectors:
        tiny = [[v["text"], v["ids"]] for v in json.loads(args.tiny_vectors.read_text())["vectors"]]
    else:
        tiny = json.loads(OUTPUT.read_text())["tiny"]

    sections = {
        "note": f"tools/make_tokenizer_vectors.py, tokenizers {tokenizers.__version__}, "
                f"Unicode {unicodedata.unidata_version}",
        "tiny": tiny,
        "qwen3_5": [[t, ids_of(qwen35, t)] for t in texts],
        "qwen3_next": [[t, ids_of(qwen3_next, t)] for t in next_texts],
        "special_as_text": [[t, ids_of(plain, t)] for t in special_texts],
        "hex": [[b.hex(), ids_of(qwen35, b.decode("utf-8", "replace"))] for b in bad],
        "sweep": sweep(points, [qwen35, qwen3_next]),
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(one_item_a_line(sections))
    print({name: len(value) for name, value in sections.items()}, OUTPUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
