"""Which decoders are told token by token, and which are left to a window."""

from serving.text.rules import ByteRules, TextRules, read_rules

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}


def strip(start=1, stop=0):
    return {"type": "Strip", "content": " ", "start": start, "stop": stop}


def sequence(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


def test_known_families_are_read():
    assert read_rules({"type": "ByteLevel"}) == ByteRules()
    assert read_rules(sequence({"type": "ByteLevel"})) == ByteRules()
    assert read_rules(sequence(REPLACE, FALLBACK, FUSE, strip())) == TextRules(
        replacements=(("▁", " "),), byte_fallback=True, strip=" ", strip_most=1
    )
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    assert read_rules(metaspace) == TextRules(replacements=(("▁", " "),), dropped_from_first="▁")
    assert read_rules(metaspace | {"prepend_scheme": "never"}) == TextRules(replacements=(("▁", " "),))


def test_others_are_not_guessed_at():
    regex = REPLACE | {"pattern": {"Regex": "▁"}}
    for decoder in (
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "CTC"},
        sequence(FALLBACK, REPLACE, FUSE),
        sequence(REPLACE, strip(), FUSE),
        sequence(REPLACE, FUSE, strip(stop=1)),
        sequence(regex, FALLBACK, FUSE),
        sequence({"type": "ByteLevel"}, FUSE),
    ):
        assert read_rules(decoder) is None


def test_pieces():
    rules = ByteRules()
    assert rules.piece("Ġwheel") == b" wheel"
    assert rules.piece("Ã©") == "é".encode()
    assert rules.piece("added word") == b"added word"
    text = TextRules(replacements=(("▁", " "),), byte_fallback=True)
    assert text.piece("▁wheel") == " wheel"
    assert text.piece("<0xE6>") == 0xE6
    assert text.piece("<0xE6") == "<0xE6"
