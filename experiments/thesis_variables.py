"""Table 3.8 of the thesis: what each context variable of the oral arguments brings, all four adaptations at work.

    python experiments/thesis_variables.py --data DATA --out OUT

The rows without a variable and with all three are those of thesis_sixteen.py scotus, so they are not trained again.
"""

import itertools
import sys

import study
from study import Experiment
from thesis_sixteen import PARTS, combined, of_whole_turns, scotus_tables

VARIABLES = ("case", "speaker", "role")
SUBSETS = tuple(
    tuple(itertools.compress(VARIABLES, subset)) for subset in itertools.product((False, True), repeat=len(VARIABLES))
)
ROWS = {"+".join(subset): {"data": {"context": list(subset)}, **combined(PARTS)} for subset in SUBSETS[1:-1]}
EXPERIMENT = Experiment("variables", "thesis_scotus.toml", ROWS, scotus_tables, whole=of_whole_turns)
main = study.script(__file__, __doc__, EXPERIMENT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
