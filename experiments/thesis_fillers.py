"""What models put into the gap of a sentence for each value of a column, side by side (thesis 2018, tables 6.1 to 6.3).

python experiments/thesis_fillers.py runs/hotels/factor30 runs/hotels/concat --column rating --template "i ____ ."

A column a run, a line a value, a table in Markdown for each template.
"""

import argparse
from pathlib import Path

from factorcell.generation.generate import every, fill
from factorcell.generation.infilling import InfillingOptions
from factorcell.model.run import Run


def main() -> None:
    """Print a table in Markdown for each template."""
    parser = argparse.ArgumentParser(description="Fillers of a gap for each value of a column, a column a model.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--column", required=True)
    parser.add_argument("--template", nargs="+", required=True)
    parser.add_argument("--max-tokens", type=int, default=4, help="at most so many words (default: 4)")
    given = parser.parse_args()
    runs = [Run.open(folder) for folder in given.runs]
    contexts = [{given.column: value} for value in reversed(every(runs[0].schema, given.column))]
    options = InfillingOptions(max_tokens=given.max_tokens)
    for template in given.template:
        found = [fill(run, template, contexts, options=options) for run in runs]
        print(f"“{template}”\n\n| {given.column} | " + " | ".join(folder.name for folder in given.runs) + " |")
        print("| --- " * (1 + len(runs)) + "|")
        for place, context in enumerate(contexts):
            cells = (rows[place]["filler"] for rows in found)
            print(f"| {context[given.column]} | " + " | ".join(cells) + " |")
        print()


if __name__ == "__main__":
    main()
