"""Programs that copy and programs that only look like it: "proven" must never be said of one that changes a bit."""

from __future__ import annotations

import pytest

from xref.compiling.copies import flow_of
from xref.compiling.hlo import read

HEAD = """\
ENTRY %main (ids: s32[3], w: bf16[9,4]) -> bf16[3,4] {
  %ids = s32[3]{0} parameter(0)
  %w = bf16[9,4]{1,0} parameter(1)
  %rows = bf16[3,4]{1,0} gather(%w, %ids), offset_dims={1}
  %zero = bf16[] constant(0)
  %zeros = bf16[3,4]{1,0} broadcast(%zero), dimensions={}
  %five = s32[] constant(5)
  %fives = s32[3]{0} broadcast(%five), dimensions={}
  %bad = pred[3]{0} compare(%ids, %fives), direction=GE
  %bads = pred[3,4]{1,0} broadcast(%bad), dimensions={0}
  %bits = u16[3,4]{1,0} bitcast-convert(%rows)
  %wide = u32[3,4]{1,0} convert(%bits)
"""


def flow(*lines, head=HEAD, more="", selects=True):
    *others, last = lines
    body = "".join(f"  {line}\n" for line in others)
    return flow_of(read(f"{more}{head}{body}  ROOT {last}\n}}\n"), 1, selects=selects)


COPIES = {
    "gather": (["%o = bf16[3,4]{1,0} copy(%rows)"], ("gather", "copy")),
    "moved": (
        ["%t = bf16[4,3]{1,0} transpose(%rows), dimensions={1,0}", "%o = bf16[12]{0} reshape(%t)"],
        ("gather", "transpose", "reshape"),
    ),
    "slice of the table": (
        ["%o = bf16[1,4]{1,0} dynamic-slice(%w, %five, %five), dynamic_slice_sizes={1,4}"],
        ("dynamic-slice",),
    ),
    "poison": (["%o = bf16[3,4]{1,0} select(%bads, %zeros, %rows)"], ("gather", "select")),
    "by bits": (
        ["%s = u16[3,4]{1,0} copy(%bits)", "%o = bf16[3,4]{1,0} bitcast-convert(%s)"],
        ("gather", "bitcast-convert to u16", "copy", "bitcast-convert to bf16"),
    ),
    "widened": (
        [
            "%n = u32[] constant(16)",
            "%ns = u32[3,4]{1,0} broadcast(%n), dimensions={}",
            "%s = u32[3,4]{1,0} shift-left(%wide, %ns)",
            "%o = f32[3,4]{1,0} bitcast-convert(%s)",
        ],
        ("gather", "bitcast-convert to u16", "convert to u32", "shift-left", "bitcast-convert to f32"),
    ),
    "two halves": (["%o = bf16[6,4]{1,0} concatenate(%rows, %rows), dimensions={0}"], ("gather", "concatenate")),
    "asynchronous": (
        [
            "%s = (bf16[3,4]{1,0}, bf16[3,4]{1,0}, u32[]) copy-start(%rows)",
            "%d = bf16[3,4]{1,0} copy-done(%s)",
            "%t = (bf16[3,4]{1,0}, s32[3]{0}) tuple(%d, %ids)",
            "%o = bf16[3,4]{1,0} get-tuple-element(%t), index=0",
        ],
        ("gather",),
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_proven_with_the_operations_on_their_way(name):
    lines, operations = COPIES[name]
    found = flow(*lines)
    assert found.proven
    assert found.operations == operations
    assert found.reasons == ()


LIARS = {
    "adds nothing": (["%o = bf16[3,4]{1,0} add(%rows, %zeros)"], "add of bf16"),
    "through float32": (
        ["%f = f32[3,4]{1,0} convert(%rows)", "%o = bf16[3,4]{1,0} convert(%f)"],
        "convert of f32",
    ),
    "chosen by the rows": (
        [
            "%c = pred[3,4]{1,0} compare(%rows, %zeros), direction=EQ",
            "%o = bf16[3,4]{1,0} select(%c, %zeros, %rows)",
        ],
        "compare of pred",
    ),
    "chosen among what is no constant": (
        ["%f = bf16[3]{0} convert(%ids)", "%b = bf16[3,4]{1,0} broadcast(%f), dimensions={0}",
         "%o = bf16[3,4]{1,0} select(%bads, %b, %rows)"],
        "select of bf16",
    ),
    "looked up by the rows": (
        ["%i = s32[3,4]{1,0} convert(%rows)", "%o = bf16[3,4]{1,0} gather(%w, %i), offset_dims={1}"],
        "convert of s32",
    ),
    "masked": (["%m = u16[3,4]{1,0} convert(%bads)", "%o = u16[3,4]{1,0} and(%bits, %m)"], "and of u16"),
    "one-hot": (["%o = bf16[3,4]{1,0} dot(%zeros, %w), lhs_contracting_dims={1}"], "dot of bf16"),
    "custom": (['%o = bf16[3,4]{1,0} custom-call(%rows), custom_call_target="Fast"'], "custom-call Fast of bf16"),
    "shifted too far": (
        ["%n = u32[] constant(17)", "%ns = u32[3,4]{1,0} broadcast(%n), dimensions={}",
         "%o = u32[3,4]{1,0} shift-left(%wide, %ns)"],
        "shift-left of u32",
    ),
    "shifted where nothing is spare": (
        ["%n = u16[] constant(1)", "%ns = u16[3,4]{1,0} broadcast(%n), dimensions={}",
         "%o = u16[3,4]{1,0} shift-left(%bits, %ns)"],
        "shift-left of u16",
    ),
    "shifted too little": (
        ["%n = u32[] constant(8)", "%ns = u32[3,4]{1,0} broadcast(%n), dimensions={}",
         "%s = u32[3,4]{1,0} shift-left(%wide, %ns)", "%o = f32[3,4]{1,0} bitcast-convert(%s)"],
        "bf16 that ends as f32",
    ),
    "not shifted": (["%o = f32[3,4]{1,0} bitcast-convert(%wide)"], "bf16 that ends as f32"),
    "shifted twice": (
        ["%n = u32[] constant(8)", "%ns = u32[3,4]{1,0} broadcast(%n), dimensions={}",
         "%s = u32[3,4]{1,0} shift-left(%wide, %ns)", "%o = u32[3,4]{1,0} shift-left(%s, %ns)"],
        "shift-left of u32",
    ),
    "taken for another type": (["%o = f16[3,4]{1,0} bitcast-convert(%rows)"], "bf16 that ends as f16"),
    "left as integers": (["%o = u16[3,4]{1,0} copy(%bits)"], "bf16 that ends as u16"),
    "bytes exchanged": (
        ["%b = u8[3,4,2]{2,1,0} bitcast-convert(%rows)", "%r = u8[3,4,2]{2,1,0} reverse(%b), dimensions={2}",
         "%o = bf16[3,4]{1,0} bitcast-convert(%r)"],
        "bitcast-convert of u8",
    ),
    "halves of a word": (
        ["%h = u16[3,4,2]{2,1,0} bitcast(%wide)", "%o = u32[3,4,2]{2,1,0} convert(%h)"], "bitcast of u16"),
    "two forms": (
        ["%s = s16[3,4]{1,0} bitcast-convert(%rows)", "%o = u16[6,4]{1,0} concatenate(%bits, %s), dimensions={0}"],
        "concatenate of u16",
    ),
    "shifted by what is no constant": (
        ["%n = u32[3]{0} convert(%ids)", "%ns = u32[3,4]{1,0} broadcast(%n), dimensions={0}",
         "%o = u32[3,4]{1,0} shift-left(%wide, %ns)"],
        "shift-left of u32",
    ),
    "narrowed": (["%o = u8[3,4]{1,0} convert(%bits)"], "convert of u8"),
    "sign-extended": (
        ["%s = s16[3,4]{1,0} bitcast-convert(%rows)", "%o = s32[3,4]{1,0} convert(%s)"], "convert of s32"),
    "padded": (["%o = bf16[4,4]{1,0} pad(%rows, %zero), padding=0_1x0_0"], "pad of bf16"),
    "written into something": (
        ["%o = bf16[3,4]{1,0} dynamic-update-slice(%zeros, %rows, %five, %five)"], "dynamic-update-slice of bf16"),
    "in a loop": (["%o = bf16[3,4]{1,0} while(%rows), condition=%c, body=%b"], "while of bf16"),
    "unheard of": (["%o = bf16[3,4]{1,0} frobnicate(%rows)"], "frobnicate of bf16"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIARS)
def test_what_is_no_copy_is_not_proven_and_says_why(name):
    lines, reason = LIARS[name]
    found = flow(*lines)
    assert not found.proven
    assert reason in found.reasons


def test_what_comes_after_something_unknown_stays_unproven():
    found = flow("%a = bf16[3,4]{1,0} add(%rows, %zeros)", "%o = bf16[3,4]{1,0} copy(%a)")
    assert found.reasons == ("add of bf16",)
    assert found.operations == ("gather", "add", "copy")


def test_a_called_computation_is_read_with_its_own_inputs():
    more = """\
%fused (a: s32[3], b: bf16[9,4]) -> bf16[3,4] {
  %b = bf16[9,4]{1,0} parameter(1)
  %a = s32[3]{0} parameter(0)
  ROOT %g = bf16[3,4]{1,0} gather(%b, %a), offset_dims={1}
}

%adds (a: bf16[9,4]) -> bf16[9,4] {
  %a = bf16[9,4]{1,0} parameter(0)
  ROOT %g = bf16[9,4]{1,0} add(%a, %a)
}

"""
    assert flow("%o = bf16[3,4]{1,0} fusion(%ids, %w), kind=kLoop, calls=%fused", more=more).operations == ("gather",)
    assert flow("%o = bf16[9,4]{1,0} fusion(%w), kind=kLoop, calls=%adds", more=more).reasons == ("add of bf16",)
    started = "%s = ((s32[3]{0}, bf16[9,4]{1,0}), bf16[3,4]{1,0}, u32[]) call-start(%ids, %w), to_apply=%fused"
    assert flow(started, "%o = bf16[3,4]{1,0} call-done(%s)", more=more).proven
    started = started.replace("call-start(%ids, %w), to_apply=%fused", "call-start(%w), to_apply=%adds")
    assert not flow(started, "%o = bf16[9,4]{1,0} call-done(%s)", more=more).proven


def test_an_output_without_the_table_or_of_several_parts_is_not_proven():
    assert flow("%o = bf16[3,4]{1,0} copy(%zeros)").reasons == ("the output does not depend on the table",)
    found = flow("%o = (bf16[3,4]{1,0}, s32[3]{0}) tuple(%rows, %ids)")
    assert found.reasons == ("the output is a tuple",)


def test_a_select_is_not_trusted_where_it_may_be_arithmetic():
    lines = ["%o = bf16[3,4]{1,0} select(%bads, %zeros, %rows)"]
    assert flow(*lines, selects=True).proven
    assert flow(*lines, selects=False).reasons == ("select of bf16",)
