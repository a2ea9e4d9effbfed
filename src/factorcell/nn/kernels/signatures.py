"""Signatures of all compiled functions.

Each signature lists the fields of a structure of native/kernels.h in their order; shapes use the letters of that file.
"""

from factorcell.nn.kernels.signature import MAX_SIZE, Array, Number, Signature

FLAG, THREADS = Number(high=1), Number(low=1, high=1 << 16)
NEXT = Number(high=0)  # a counter of the compiled function, which must be zero before the call
SHARED = {"threads": THREADS, "half": FLAG, "next": NEXT}

RECURRENCE = Signature(
    "recurrence",
    {
        "sequences": Number("B", 1),
        "steps": Number("T", 1),
        "hidden": Number("H", 1),
        "rank": Number("R"),
        **SHARED,
    },
    {
        "input_gates": Array("B T 3H", "half"),
        "bias": Array("B 3H"),
        "input_reduced": Array("B T R"),
        "weight": Array("H 3H"),
        "packed": Array("packed"),
        "left": Array("B H R", "half"),
        "right": Array("B R 3H", "half"),
        "keep": Array("T B H"),
        "norm": Array("8 H"),
        "scale": Array("B 3H"),
        "feed": Array("B H"),
        "first_hidden": Array("B H"),
        "first_memory": Array("B H"),
        "lengths": Array("B", "int64", upto="T"),
        "outputs": Array("B T H"),
        "last_hidden": Array("B H"),
        "last_memory": Array("B H"),
        "memories": Array("B T H"),
        "gates": Array("B T 3H"),
        "reduced": Array("B T R"),
        "inverse": Array("B T 3"),
        "outputs_gradient": Array("B T H"),
        "last_hidden_gradient": Array("B H"),
        "last_memory_gradient": Array("B H"),
        "input_gates_gradient": Array("B T 3H", "half"),
        "bias_gradient": Array("B 3H"),
        "reduced_gradient": Array("B T R"),
        "first_hidden_gradient": Array("B H"),
        "first_memory_gradient": Array("B H"),
        "norm_gradient": Array("B 8 H"),
    },
    {
        "packing": "weight",
        "forward": "input_gates bias weight first_hidden first_memory outputs last_hidden last_memory",
        "forward with a rank": "left right",
        "forward with normalization": "norm",
        "backward": (
            "weight first_memory outputs memories gates"
            " input_gates_gradient bias_gradient first_hidden_gradient first_memory_gradient"
        ),
        "backward with a rank": "left right reduced_gradient",
        "backward with normalization": "norm inverse norm_gradient",
    },
)

SOFTMAX = Signature(
    "softmax",
    {
        "rows": Number("N"),
        "size": Number("V", 1),
        "width": Number("D", 1),
        "texts": Number("C", 1),
        "parts": Number(low=1, high=1 << 17),
        **SHARED,
    },
    {
        "values": Array("N D"),
        "table": Array("V D"),
        "bias": Array("C V"),
        "packed": Array("packed"),
        "result": Array("N"),
        "logits": Array("N V"),
        "targets": Array("N", "int64", upto="V"),
        "scale": Array("N"),
        "values_gradient": Array("N D"),
        "table_gradient": Array("V D"),
        "bias_gradient": Array("C V"),
    },
    {
        "packing": "table packed",
        "sums": "values table bias packed result",
        "gradients": "values table bias packed result targets scale",
    },
)

DRAWING = Signature(
    "drawing",
    {
        "texts": Number("N"),
        "size": Number("V", 1),
        "width": Number("D", 1),
        "contexts": Number("C", 1),
        "count": Number("S", 1),
        "banned_count": Number("A"),
        "forbidden_count": Number("M"),
        "top_k": Number(),
        "end": Number(below="V"),
        **SHARED,
    },
    {
        "values": Array("N D"),
        "packed": Array("packed"),
        "bias": Array("C V"),
        "context": Array("N", "int64", below="C"),
        "banned": Array("A", "int64", below="V"),
        "ends": Array("N", "int64", upto="M"),
        "forbidden": Array("M", "int64", below="V"),
        "places": Array("N S", "double"),
        "tokens": Array("N S", "int64"),
        "log_probs": Array("N S"),
    },
    {"next tokens": "values packed bias context banned ends forbidden tokens log_probs"},
    doubles=["temperature", "top_p"],
)

ROWS = Signature(
    "rows",
    {"rows": Number("U"), "size": Number("V"), "width": Number("D"), "threads": THREADS, "next": NEXT},
    {
        "index": Array("U", "int64", below="V"),
        "table": Array("V D"),
        "first": Array("V D"),
        "second": Array("V D"),
        "columns": Array("U 5"),
        "gradient": Array("U D"),
        "constants": Array("6"),
    },
    {"catching up": "index table first second columns", "a step": "index table first second gradient constants"},
)

# Letters of the compiled search that native/kernels.h does not define. A panel is a group of P adjacent columns of a
# matrix. G is the number of columns of all gates, W the size of the vocabulary rounded up to whole panels. pV, pE, pG
# and pR are the numbers of panels that hold V, E, G and R columns. A matrix in bfloat16 is stored in words that hold
# two rows each: wR and sH are the numbers of words that hold R and H rows.
MODEL = Signature(
    "model",
    {},
    {
        "embedding": Array("V E"),
        "inputs": Array("pG E P"),
        "weight": Array("pG H P"),
        "short_weight": Array("pG sH P", "int32"),
        "norm": Array("8 H"),
        "projection": Array("pE H P"),
        "table": Array("pV E P"),
    },
    {"a model": "embedding inputs weight projection table", "short products": "short_weight"},
)

SEARCH = Signature(
    "search",
    {
        "requests": Number(low=1),
        "size": Number("V", 1),
        "width": Number("E", 1),
        "hidden": Number("H", 1),
        "rank": Number("R"),
        "end": Number(below="V"),
        "threads": THREADS,
        "batch": Number(low=1),
        "growth": Number(low=1),
        "products": Number(high=1),
        "next": NEXT,
    },
    {},
    {},
    pointers=["request", *MODEL.arrays],
    doubles=["margin"],
)

CONTEXT = Signature(
    "context",
    {},
    {
        "gate_bias": Array("G"),
        "left_inputs": Array("pR E P"),
        "left": Array("pR H P"),
        "right": Array("pG R P"),
        "short_left": Array("pR sH P", "int32"),
        "short_right": Array("pG wR P", "int32"),
        "bias": Array("W"),
    },
    {"a context": "gate_bias bias", "a rank": "left_inputs left right", "a short rank": "short_left short_right"},
)

# Letters of a request: S is the number of values in a state, 2H + V (h, m and log probabilities). K is the largest
# number of completions. L is the largest number of tokens of a completion, or the number of `input_tokens`.
REQUEST = Signature(
    "request",
    {
        "k": Number(low=1),
        "max_tokens": Number("L"),
        "allow_empty": FLAG,
        "max_rows": Number(high=MAX_SIZE - 1),
        "max_waiting": Number(),
        "count": NEXT,
        "expanded": NEXT,
    },
    {
        "start": Array("S"),
        "scores": Array("K", "double"),
        "lengths": Array("K", "int32"),
        "tokens": Array("K L", "int32"),
        "input_tokens": Array("L", "int64", below="V"),
        "states": Array("L S"),
    },
    {"a search": "start scores lengths tokens", "reading": "start input_tokens states"},
    pointers=list(CONTEXT.arrays),
    doubles=["seconds", "lost_score"],
)
