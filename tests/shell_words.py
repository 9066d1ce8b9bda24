"""Words of shell commands that pages show."""

import re


def expand_braces(word: str) -> list[str]:
    """Expand {a,b} as a shell does."""
    match = re.search(r"\{([^{}]*)\}", word)
    if match is None:
        return [word]
    before, after = word[: match.start()], word[match.end() :]
    return [w for part in match[1].split(",") for w in expand_braces(f"{before}{part}{after}")]
