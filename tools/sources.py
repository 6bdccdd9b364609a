"""What the checks share: the files of the tree, and C++ text with comments and literals blanked."""

import pathlib
import re
import subprocess
import sys

CXX = {".cc", ".h", ".cu", ".cuh"}

# Raw string, comment, string, character; a digit separator (1'000) is no character literal.
_BLANKED = re.compile(
    r"""R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"
      | //(?:\\\n|[^\n])*
      | /\*.*?\*/
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL | re.VERBOSE,
)


def root_from_arguments():
    """The tree to check: the one argument, or the folder above tools/."""
    return pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()


def files(root):
    """Paths relative to root of every file that is tracked or about to be: not ignored, and there."""
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    git = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", root, *listing], check=True, stdout=subprocess.PIPE, text=True
    )
    return sorted(
        pathlib.PurePosixPath(name) for name in set(git.stdout.split("\0")) if name and (root / name).is_file()
    )


def read(path):
    """The text of a file, or None if it is binary."""
    data = path.read_bytes()
    return None if b"\0" in data else data.decode("utf-8", errors="replace")


def code_only(text, keep_includes=False):
    """C++ text with comments and literals blanked and every newline kept, so that offsets still give line numbers."""

    def blank(match):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if keep_includes and match[0].startswith('"') and line.lstrip().startswith("#"):
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    return _BLANKED.sub(blank, text)


def report(problems, summary):
    """Prints the problems and ends the program: 1 if there are any, else 0."""
    for problem in problems:
        print(problem)
    if problems:
        print(f"problems: {len(problems)}; {summary}")
    sys.exit(1 if problems else 0)
