"""The corpus: Debian's Python 3.11 library, tests and documentation sources, PSF-2.0, fetched by package name.

One JSON object a line: {"split": train or held_out, "kind": code, doc or chat, "name", "text"}. Chat examples are cut
from the code: a function with its docstring gives questions and answers. The held-out modules are those behind
bench/prompts/held_out.json; their tests and their documents are held out too.
"""

import ast
import json
import lzma
import pathlib
import random
import re
import subprocess
import tempfile

PACKAGES = ("libpython3.11-minimal", "libpython3.11-stdlib", "libpython3.11-testsuite", "python3.11-doc")
HELD_OUT_MODULES = (
    "asyncio/__main__", "asyncio/protocols", "asyncio/streams", "distutils/_msvccompiler", "distutils/command/bdist_dumb",
    "email/contentmanager", "encodings/punycode", "filecmp", "idlelib/debugobj", "json/scanner", "logging/handlers",
    "multiprocessing/resource_tracker", "os", "pkgutil", "symtable", "tomllib/_re", "turtledemo/lindenmayer",
    "unittest/_log", "weakref",
)
HELD_OUT_DOCUMENTS = (
    "c-api/apiabiversion", "distutils/apiref", "library/asyncio-protocol", "library/asyncio-stream", "library/bisect",
    "library/decimal", "library/email.contentmanager", "library/graphlib", "library/select", "reference/simple_stmts",
    "using/unix",
)
SKIPPED = ("lib2to3/tests/data/", "pydoc_data/", "test/cjkencodings/", "test/encoded_modules/", "idlelib/idle_test/htest")
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def fetch(folder):
    """Downloads and unpacks the packages; apt-get needs no root for that."""
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
    return folder / "root"


def readable(path):
    """The text of a file that is prose or code and not a table, else None."""
    data = path.read_bytes()
    if not 200 <= len(data) <= 600_000:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    strange = sum(ord(c) > 126 for c in text) > 0.02 * len(text)
    numbers = sum(c.isdigit() for c in text) > 0.18 * len(text)
    return None if strange or numbers or "\0" in text else text


def is_held_out(name):
    """Whether a library file is a held-out module or one of its tests. name: a path without suffix."""
    if name in HELD_OUT_MODULES:
        return True
    parts = name.split("/")
    if not any(part in ("test", "tests", "idle_test") or part.startswith("test_") for part in parts):
        return False
    for module in HELD_OUT_MODULES:
        own = [part.strip("_") for part in module.split("/")]
        if parts[-1] in ("test_" + own[-1], "test_" + "_".join(own)) or parts[-1] == "test_" + own[0] != "test_asyncio":
            return True
    return False


def library(root):
    base = root / "usr/lib/python3.11"
    for path in sorted(base.rglob("*.py")):
        name = path.relative_to(base).with_suffix("").as_posix()
        if name.startswith(SKIPPED) or re.fullmatch(r"encodings/(cp|iso|mac|koi|ptcp|big5|gb|euc|shift|tis|hp|johab).*", name):
            continue
        text = readable(path)
        if text:
            yield name, text


def documents(root):
    base = root / "usr/share/doc/python3.11/html/_sources"
    of_modules = {"library/" + module.replace("/", ".") for module in HELD_OUT_MODULES}
    for path in sorted(base.rglob("*.rst.txt")):
        name = path.relative_to(base).as_posix()[: -len(".rst.txt")]
        text = readable(path)
        if text:
            yield name, text, name in HELD_OUT_DOCUMENTS or name in of_modules


def without_docstring(node, lines):
    """Source lines of a function, its docstring's replaced by an ellipsis."""
    doc = node.body[0]
    indent = " " * doc.col_offset
    return "\n".join([*lines[node.lineno - 1: doc.lineno - 1], indent + '"""..."""', *lines[doc.end_lineno: node.end_lineno]])


def dedented(text, columns):
    return "\n".join(line[columns:] if line[:columns].strip() == "" else line for line in text.split("\n"))


def examples(name, text, rng):
    """(question, answer) pairs cut from one module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines, module = text.split("\n"), name.replace("/", ".")
    about = ast.get_docstring(tree)
    if about and len(about) < 1200:
        yield rng.choice(["Explain the Python module {}.", "What is the module {} for?"]).format(module), about
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or len(node.body) < 2:
            continue
        code = "\n".join(lines[node.lineno - 1: node.end_lineno])
        if not 60 <= len(code) <= 1200:
            continue
        code = dedented(code, node.col_offset)
        fenced, doc, kind = f"```python\n{code}\n```", ast.get_docstring(node), rng.randrange(5)
        if doc and len(doc) < 500 and kind < 4:
            summary = " ".join(doc.split())
            bare = f"```python\n{dedented(without_docstring(node, lines), node.col_offset)}\n```"
            ask = rng.choice(["Write a function named {}. {}", "Python function {}: {}", "Write a Python function `{}`: {}"])
            yield (
                (ask.format(node.name, summary), fenced),
                ("Explain this code.\n" + fenced, summary),
                (f"What does `{node.name}` in `{module}` do?", summary),
                ("Write a docstring for this code.\n" + bare, f'"""{doc}"""'),
            )[kind]
        elif kind == 4:
            rows = code.split("\n")
            cut = rng.randrange(1, len(rows)) if len(rows) > 2 else 1
            head, rest = "\n".join(rows[:cut]), "\n".join(rows[cut:])
            if rest.strip():
                yield f"Complete this code.\n```python\n{head}\n```", f"```python\n{rest}\n```"


def records(root, seed=1):
    rng = random.Random(seed)
    for name, text in library(root):
        split = "held_out" if is_held_out(name) else "train"
        yield {"split": split, "kind": "code", "name": name, "text": text}
        for question, answer in examples(name, text, rng):
            chat = CHAT.format(question) + answer + "<|im_end|>\n"
            yield {"split": split, "kind": "chat", "name": name, "text": chat}
    for name, text, held_out in documents(root):
        yield {"split": "held_out" if held_out else "train", "kind": "doc", "name": name, "text": text}


def build(out, packages=None, limit=0):
    """Writes the corpus to `out` (.jsonl.xz). packages: a folder where they are unpacked; None: fetch them."""
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(packages) if packages else fetch(scratch)
        rows = list(records(root))
    if limit:
        rows = random.Random(0).sample(rows, min(limit, len(rows)))
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(out, "wt", preset=6) as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    for split in ("train", "held_out"):
        for kind in ("code", "doc", "chat"):
            chosen = [row["text"] for row in rows if (row["split"], row["kind"]) == (split, kind)]
            print(f"{split:9} {kind:5} {len(chosen):6} texts {sum(map(len, chosen)):10} characters")


def load(path, split="train"):
    with lzma.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["split"] == split]
