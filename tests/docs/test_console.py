from pathlib import Path

from tests.docs.console import Example, examples

DOCUMENT = """\
Prose with a $ sign.

```console
$ one
first line
second line
$ two 'within
quotes' \\
    and on
```

```
$ not this
```

```console
$ three
out
```
"""


def test_commands_are_read_whole_and_output_goes_with_the_command_before_it(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(DOCUMENT)
    assert examples(document) == [
        Example(4, "one", "first line\nsecond line\n"),
        Example(7, "two 'within\nquotes' \\\n    and on", ""),
        Example(17, "three", "out\n"),
    ]
