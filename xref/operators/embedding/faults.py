"""The faults that embedding kernels have had, as data: how each looks, what it does to users, who reported it.

The judge names a fault where what it saw is consistent with it; the mutants of the test-suite have one each. A report
is named only where we have read it: a fault without one is real all the same.

Not promised: that a kernel that fails has one of these faults, or only one.
"""

from __future__ import annotations

from xref.spec import Fault

__all__ = ["FAULTS"]

# Ids

NEGATIVE_IDS_WRAP = Fault(
    "negative-ids-wrap",
    "A negative id returns a row counted from the end of the table.",
    "Padding written as -1 is given a real token's row, and nothing says so.",
    "pytorch/pytorch#151918",
)
IDS_CLAMPED = Fault(
    "ids-clamped",
    "An id past the end returns the last row, one below zero the first.",
    "A tokenizer larger than the table trains and samples on the wrong token for ever.",
    "tensorflow/tensorflow#61865",
)
BAD_IDS_FILLED = Fault(
    "bad-ids-filled",
    "An id out of range returns a row of one value: zeros or NaN.",
    "Bad input looks like data, and the error shows far from where it was made.",
    "jax-ml/jax#14193",
)
BAD_IDS_UNCHECKED = Fault(
    "bad-ids-unchecked",
    "An id out of range returns what is no row of the table, or ends the process.",
    "Foreign memory may leak into the hidden states; on another day the same call crashes.",
    "PaddlePaddle/Paddle#79507",
)
NON_INTEGER_IDS_TAKEN = Fault(
    "non-integer-ids-taken",
    "Ids of bool, float or complex are taken as numbers and return rows.",
    "A mask or a rounded id handed over by mistake is looked up in silence.",
    "keras-team/keras#19332",
)
IDS_NARROWED_TO_8_BITS = Fault(
    "ids-narrowed-to-8-bits",
    "Row id mod 256 comes back in place of row id, or a negative reading of it.",
    "Tokens past the first 128 or 256 are given other tokens' rows.",
)
IDS_NARROWED_TO_16_BITS = Fault(
    "ids-narrowed-to-16-bits",
    "Row id mod 65536 comes back in place of row id, or a negative reading of it.",
    "Rare tokens, which often have the large ids, are given the rows of frequent ones.",
)
IDS_NARROWED_TO_32_BITS = Fault(
    "ids-narrowed-to-32-bits",
    "An int64 id past 2^31 or 2^32 is taken modulo 2^32, before its range is checked.",
    "A corrupt id passes the check and becomes a valid one: 2^32 + 1 is row 1.",
    "jax-ml/jax#18385",
)
IDS_THROUGH_FLOAT = Fault(
    "ids-through-float",
    "A large id returns a row near the one asked for: the id was rounded as a float.",
    "Neighbouring tokens above 256, 2048 or 2^24 share a row.",
    "keras-team/keras#19332",
)
ROW_OFF_BY_ONE = Fault(
    "row-off-by-one",
    "Each element is that of the row before or after the one asked for.",
    "Every token is taken for its neighbour in the vocabulary.",
)
SOME_ROWS_WRONG = Fault(
    "some-rows-wrong",
    "A few ids return other rows than their own; all other ids are right.",
    "Only the texts with those tokens are wrong, so that an aggregate hardly shows it.",
    "tenstorrent/tt-metal#47506",
)
ROW_OFFSET_OVERFLOW = Fault(
    "row-offset-overflow",
    "Rows whose first element is past 2^31 elements or bytes come from elsewhere, or are zeros.",
    "Large tables are wrong in their upper part, small ones in tests are right.",
    "flagos-ai/FlagGems#4153",
)
PADDING_ID_ZEROED = Fault(
    "padding-id-zeroed",
    "The row of one id, often 0, comes back as zeros.",
    "A token that shares the id of padding loses its embedding.",
)
ID_DTYPE_MISREAD = Fault(
    "id-dtype-misread",
    "Ids are right in one integer dtype and wrong in another of the same values.",
    "A change of the tokenizer's output dtype changes the model.",
    "jax-ml/jax#16836",
)
LAST_ROWS_LOST = Fault(
    "last-rows-lost",
    "The last few rows of the table come back as zeros or another row.",
    "Where V does not divide over ranks or tiles the last tokens have no embedding.",
    "huggingface/text-generation-inference#1463",
)
REFUSES_WITH_ANOTHER_ERROR = Fault(
    "refuses-with-another-error",
    "Ids that must be refused raise an exception of another type than IndexError or TypeError.",
    "Callers that catch the error which is documented let this one through.",
)

# Bits

SUBNORMALS_FLUSHED = Fault(
    "subnormals-flushed",
    "Subnormal elements come back as zero.",
    "Small weights vanish on one machine and not on another.",
    "tenstorrent/tt-metal#54899",
)
NEGATIVE_ZERO_LOST = Fault(
    "negative-zero-lost",
    "-0.0 comes back as +0.0: the rows were added to, or multiplied by, something.",
    "Two paths that ought to be copies differ in bits, and caches of hashes miss.",
    "pytorch/helion#2054",
)
NAN_CHANGED = Fault(
    "nan-changed",
    "A NaN is still a NaN, of another payload, sign or quiet bit.",
    "Marks that debuggers put into NaNs are lost, and the bits depend on vector width.",
)
NAN_REPLACED = Fault(
    "nan-replaced",
    "A NaN comes back as a number or an infinity.",
    "A broken weight is hidden where it ought to be seen.",
    "tenstorrent/tt-metal#54899",
)
INFINITY_REPLACED = Fault(
    "infinity-replaced",
    "An infinity comes back as the largest finite value, or as NaN.",
    "An overflow is hidden where it ought to be seen.",
)
ROUNDED_THROUGH_BFLOAT16 = Fault(
    "rounded-through-bfloat16",
    "Elements are those of the row rounded to bfloat16.",
    "A table of more precision has 8 significant bits left, and two stacks drift apart.",
)
ROUNDED_THROUGH_FLOAT16 = Fault(
    "rounded-through-float16",
    "Elements are those of the row rounded to float16; large ones are infinite.",
    "Weights past 65504 overflow and small ones lose bits.",
)
ROUNDED_THROUGH_FLOAT8 = Fault(
    "rounded-through-float8",
    "Elements are those of the row rounded to float8.",
    "Three or four significant bits are left of each weight.",
)
ONE_HOT_PRODUCT = Fault(
    "one-hot-product",
    "Rows come from a product with a one-hot matrix: NaN wherever any row of the table has one, and no -0.0.",
    "One broken row of the table poisons every token, and the rest is rounded as products are.",
    "pytorch/helion#2054",
)
SCALED = Fault(
    "scaled",
    "Elements are those of the row times a constant.",
    "The scale of some architectures is applied where this one has none.",
)
LAST_BITS_CHANGED = Fault(
    "last-bits-changed",
    "Elements differ from the row's in their last bits.",
    "Trainer and sampler drift apart by amounts that a tolerance hides.",
)

# Form

WRONG_DTYPE = Fault(
    "wrong-dtype",
    "The output has another dtype than the table's, or than float32 for `forward_fp32`.",
    "Everything after it runs in another precision, at another cost in memory.",
    "aws-neuron/neuronx-distributed#35",
)
WRONG_SHAPE = Fault(
    "wrong-shape",
    "The output's shape is not that of the ids with the width added.",
    "Broadcasting may hide the mistake and mix up tokens.",
)
EMPTY_OR_SCALAR_IDS_FAIL = Fault(
    "empty-or-scalar-ids-fail",
    "No ids at all, or a 0-dimensional id, raises or returns another shape.",
    "An empty micro-batch or a single decoding step stops the run.",
    "pytorch/pytorch#82809",
)

# Shapes and memory

COLUMNS_PAST_A_TILE_WRONG = Fault(
    "columns-past-a-tile-wrong",
    "Columns are right up to a multiple of the tile, and wrong or unwritten past it.",
    "Widths that tests seldom use are wrong in their tail.",
    "tenstorrent/tt-metal#17643",
)
TOKENS_PAST_A_TILE_WRONG = Fault(
    "tokens-past-a-tile-wrong",
    "Tokens are right up to a number of them, and wrong or unwritten past it.",
    "Long prefills are wrong where short tests are right.",
)
PACKED_PAIRS = Fault(
    "packed-pairs",
    "Rows are read two at a time: an odd id, or the last row of an odd V, comes back wrong.",
    "Half of the vocabulary is given its neighbour's row.",
    "jax-ml/jax#39577",
)
COLUMNS_MOVED = Fault(
    "columns-moved",
    "The row's elements are all there, in other columns.",
    "Every feature is taken for another one.",
)
TABLE_STRIDES_IGNORED = Fault(
    "table-strides-ignored",
    "A transposed or sliced table is read as if its rows lay one after another.",
    "Tied or sharded weights, which are views, give other rows than copies of them.",
    "NVIDIA/TransformerEngine#2734",
)
IDS_STRIDES_IGNORED = Fault(
    "ids-strides-ignored",
    "A sliced or transposed tensor of ids is read as if its elements lay one after another.",
    "Slices of a batch look up the tokens of its neighbours.",
)
STORAGE_OFFSET_IGNORED = Fault(
    "storage-offset-ignored",
    "A view that begins inside its storage is read from the storage's beginning, or misaligned.",
    "A shard of a flat parameter buffer gives the rows of another parameter.",
    "triton-lang/triton#1330",
)

# Invariance

OTHER_PATH_BY_BATCH_SIZE = Fault(
    "other-path-by-batch-size",
    "The same token has other bits where the number of tokens is another.",
    "Trainer and sampler disagree on the same text, and the policy ratio drifts.",
)
POSITION_DEPENDENT = Fault(
    "position-dependent",
    "The same token has other bits at another place of the batch.",
    "The same prompt gives another answer in another slot.",
)
NEIGHBOUR_DEPENDENT = Fault(
    "neighbour-dependent",
    "The same token has other bits beside other tokens.",
    "What other users send changes what this one is answered.",
)
RUN_TO_RUN = Fault(
    "run-to-run",
    "The same call has other bits from run to run, in no order.",
    "No result can be reproduced, nor a change be blamed for another.",
)
CALL_COUNT_DEPENDENT = Fault(
    "call-count-dependent",
    "The n-th call has other bits than the first.",
    "Warm-up, tuning or a counter changes the numbers in the middle of a run.",
)
STALE_CACHE = Fault(
    "stale-cache",
    "The rows are those of an earlier call: a cache was keyed by too little.",
    "After an optimiser's step the sampler goes on with the old weights.",
)
OUTPUT_BUFFER_REUSED = Fault(
    "output-buffer-reused",
    "An earlier result changes when the kernel is called again.",
    "Whoever keeps two batches at once has the second one twice.",
)
GRADIENT_MODE_DEPENDENT = Fault(
    "gradient-mode-dependent",
    "The forward has other bits when a gradient is asked for, or under another way of calling.",
    "Training and evaluation of one model differ in their first layer.",
)
SETTING_DEPENDENT = Fault(
    "setting-dependent",
    "Another thread, number of threads, default dtype or deterministic mode gives other bits.",
    "A server's worker threads answer otherwise than the script that the kernel was tested with.",
)

# Conduct

TABLE_REWRITTEN = Fault(
    "table-rewritten",
    "The table has other bits after the call.",
    "Looking at a model changes it.",
    "pytorch/pytorch#26596",
)
IDS_REWRITTEN = Fault(
    "ids-rewritten",
    "The ids have other values after the call.",
    "Labels made of the same ids are wrong from then on.",
)
COTANGENT_REWRITTEN = Fault(
    "cotangent-rewritten",
    "The cotangent has other bits after the backward.",
    "Whatever else uses the same gradient, such as a hook or a second loss, is wrong.",
)
OUTPUT_ALIASES_INPUT = Fault(
    "output-aliases-input",
    "The output shares memory with the table or the ids.",
    "An operation in place on the hidden states rewrites the weights.",
)
WHOLE_TABLE_COPIED = Fault(
    "whole-table-copied",
    "The call needs memory of the size of the table beside its output.",
    "A step of decoding one token costs memory and traffic of the whole table's size.",
    "google/flax#4100",
)
CRASH = Fault(
    "crash",
    "The process ends without an exception.",
    "A server goes down with every request that it held, and no line of Python to blame.",
    "pytorch/pytorch#145267",
)
ENDLESS_LOOP = Fault(
    "endless-loop",
    "The call does not return in the time that a call is allowed.",
    "One such request holds a worker for as long as it is let.",
)

# The gradient

DUPLICATES_OVERWRITE = Fault(
    "duplicates-overwrite",
    "A row's gradient is that of one of its positions, where their sum is right.",
    "Frequent tokens learn from one position a batch.",
    "tenstorrent/tt-metal#6232",
)
ACCUMULATED_IN_LOW_PRECISION = Fault(
    "accumulated-in-low-precision",
    "Sums of many positions stop growing, or are off by far more than one rounding.",
    "Frequent tokens learn too little: in bfloat16 a thousand ones sum to 256.",
    "flagos-ai/FlagGems#4295",
)
FREQUENCY_SCALED = Fault(
    "frequency-scaled",
    "A row's gradient is divided by the number of its positions.",
    "A mean is trained where the loss asks for a sum.",
)
PADDING_GRADIENT_DROPPED = Fault(
    "padding-gradient-dropped",
    "The gradient of one id, often 0 or the last, is zero although it was named.",
    "A real token that shares the id of padding never learns.",
    "pytorch/pytorch#151918",
)
UNTOUCHED_ROWS_NOT_ZERO = Fault(
    "untouched-rows-not-zero",
    "Rows that no id names have a gradient.",
    "Tokens that were never seen drift, or become NaN at once.",
)
COTANGENT_STRIDES_IGNORED = Fault(
    "cotangent-strides-ignored",
    "A cotangent that is a view, or broadcast, is read as if its elements lay one after another.",
    "Losses that sum or slice have the gradients of other positions.",
)
COTANGENT_CAST_FIRST = Fault(
    "cotangent-cast-first",
    "Each position's cotangent is rounded to the table's dtype before it is summed.",
    "A float32 gradient has lost its low bits before it is added up.",
)
GRADIENT_ACCUMULATES_ACROSS_CALLS = Fault(
    "gradient-accumulates-across-calls",
    "A second backward holds the first one's gradient as well.",
    "Each step repeats the steps before it.",
    "pytorch/pytorch#17919",
)
DUPLICATES_CAPPED = Fault(
    "duplicates-capped",
    "Positions of one id past a number of them add nothing.",
    "Frequent tokens of long batches learn from its beginning alone.",
)
GRADIENT_ORDER_BY_RUN = Fault(
    "gradient-order-by-run",
    "The last bits of sums change from run to run, or with layout and batch.",
    "No training run can be repeated to the bit.",
    "MooreThreads/torch_musa#152",
)
GRADIENT_SCALED = Fault(
    "gradient-scaled",
    "The gradient is the right one times a constant.",
    "The learning rate of this one layer is another than the one set.",
)
SPECIALS_DROPPED = Fault(
    "specials-dropped",
    "NaN or infinite cotangents count as numbers.",
    "A loss that has blown up goes on training in silence.",
)
SUBNORMAL_SUMS_FLUSHED = Fault(
    "subnormal-sums-flushed",
    "Sums below the smallest normal number come back as zero.",
    "Small gradients vanish on one machine and not on another.",
)
GRADIENT_LOST = Fault(
    "gradient-lost",
    "There is no gradient, or it is zero.",
    "The table is never trained, and the loss may fall all the same.",
)
GRADIENT_RAISES = Fault(
    "gradient-raises",
    "The backward raises where ids and cotangents are as they may be.",
    "The layer can be called and not trained.",
)
BITS_ADDED_AS_INTEGERS = Fault(
    "bits-added-as-integers",
    "A sum is that of the cotangents' bit patterns, added as integers.",
    "Frequent tokens get gradients that have nothing to do with their sums; ids named once look right.",
)

FAULTS: tuple[Fault, ...] = tuple(fault for fault in list(globals().values()) if isinstance(fault, Fault))
"""Every fault above, in that order; each has a mutant in the test-suite."""
