"""What can go wrong, by exit code; and what is counted rather than refused."""

COUNTS = ["dropped_no_supervision", "dropped_too_long", "dropped_duplicates", "truncated_documents", "skipped_conversations",
          "mapped_conversations", "expanded_conversations", "bad_lines", "mask_tokens_in_text"]


class Usage(Exception):
    """Exit code 2."""


class BadInput(Exception):
    """Exit code 3."""


class CannotWrite(Exception):
    """Exit code 1."""


class BadLine(Exception):
    """A line that breaks the rules: all of them are reported, then exit code 3."""


class Skip(Exception):
    """A conversation that no document can be made of: counted and named, not an error."""
