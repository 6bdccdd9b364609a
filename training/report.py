"""bench/results/acceptance.json: what the engine measures and what this code expects, and the table of README.md."""

import datetime
import json
import pathlib
import subprocess
import tempfile

from tokenizers import Tokenizer

SAMPLED = ["--top-k", "0", "--top-p", "1"]


def prompt_file(prompts, tokenizer_file, out):
    """The held-out prompts as texts, in bench-spec's format."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    with open(out, "w") as file:
        for prompt in prompts:
            text = tokenizer.decode(prompt["ids"], skip_special_tokens=False)
            if tokenizer.encode(text, add_special_tokens=False).ids != prompt["ids"]:
                raise ValueError(f"a prompt out of {prompt['source']} is other tokens as a text")
            file.write(json.dumps({"category": prompt["category"], "turns": [text]}) + "\n")


def measure(engine, target, drafters, prompts, tokens):
    """{drafter: {temperature: {length, request_mean, categories, accepted by position}}} as the engine counts."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "prompts.jsonl"
        prompt_file(prompts, pathlib.Path(target) / "tokenizer.json", file)
        for temperature in (0, 1):
            said = subprocess.run([engine, "bench-spec", "--model", target, "--prompts", file, "--drafter", ",".join(drafters),
                                   "--temperature", str(temperature), *SAMPLED, "--max-tokens", str(tokens), "--ignore-eos",
                                   "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
            for folder, run in zip(drafters, json.loads(said)["runs"]):
                all_of = run["overall"]
                found.setdefault(pathlib.Path(folder).name, {})[str(temperature)] = {
                    "length": round(all_of["acceptance_length"], 3),
                    "request_mean": round(all_of["acceptance_length_request_mean"], 3),
                    "categories": {k: round(v["acceptance_length"], 3) for k, v in run["categories"].items()},
                    "accepted_at": [round(rate, 3) for rate in all_of["per_position_acceptance_rates"]]}
    return found


def machine():
    """As `./dev bench` names it."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = next(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name"))
    return f"{name}, {text.count('processor' + chr(9))} cores"


def write(out, engine, expected, note):
    here = pathlib.Path(__file__).resolve().parent
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, stdout=subprocess.PIPE, text=True).stdout.strip()
    head = {"machine": machine(), "commit": commit or "unknown", "date": datetime.date.today().isoformat(), "note": note}
    results = [{"name": f"{name}/temperature={t}", "engine": engine[name][t], "pytorch": expected.get(name, {}).get(t)}
               for name in engine for t in engine[name]]
    lines = ",\n".join("  " + json.dumps(result) for result in results)
    pathlib.Path(out).write_text(json.dumps(head)[:-1] + ',\n "results": [\n' + lines + "\n]}\n")
    return results


def table(results):
    lines = ["| drafter | temperature | engine | mean of requests | code, doc, chat | PyTorch, float32 |", "|---|--:|--:|--:|---|--:|"]
    for result in results:
        name, temperature = result["name"].split("/temperature=")
        r, by = result["engine"], result["engine"]["categories"]
        expected = f"{result['pytorch']['length']:.2f}" if result["pytorch"] else "-"
        kinds = ", ".join(f"{by[k]:.2f}" for k in ("code", "doc", "chat"))
        lines.append(f"| `{name}` | {temperature} | {r['length']:.2f} | {r['request_mean']:.2f} | {kinds} | {expected} |")
    return "\n".join(lines)
