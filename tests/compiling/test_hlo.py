"""Programs read from XLA's text: what is understood of a line, and that nothing is passed over."""

from __future__ import annotations

import pytest

from xref.compiling.hlo import read

PROGRAM = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(s32[3]{0}, bf16[9,4]{1,0})->bf16[3,4]{1,0}}

FileNames
1 "f.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused (param_0.2: bf16[9,4], param_1: s32[3]) -> bf16[3,4] {
  %param_0.2 = bf16[9,4]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = s32[3]{0:T(1024)S(1)} parameter(1)
  ROOT %gather.4 = bf16[3,4]{1,0:T(8,128)(2,1)} gather(%param_0.2, %param_1), slice_sizes={1,4}, metadata={op_name="f"}
}, execution_thread="sparsecore"

ENTRY %main.3 (ids.1: s32[3], weight.1: bf16[9,4]) -> bf16[3,4] {
  %weight.1 = bf16[9,4]{1,0} parameter(1), sharding={replicated}
  %ids.1 = s32[3]{0} parameter(0)
  %constant.1 = s32[] constant(-7)
  %copy-start = (s32[3]{0:S(1)}, s32[3]{0}, u32[]{:S(2)}) copy-start(%ids.1)
  %copy-done = s32[3]{0:S(1)} copy-done(%copy-start)
  ROOT %out = bf16[3,4]{1,0} fusion(%weight.1, /*index=1*/%copy-done), kind=kLoop, calls=%fused
}
"""


def test_a_program_is_read_whole():
    program = read(PROGRAM)
    assert program.entry == "main.3"
    assert set(program.computations) == {"fused", "main.3"}
    entry = program.computations["main.3"]
    assert entry.root == "out"
    assert list(entry.operations) == ["weight.1", "ids.1", "constant.1", "copy-start", "copy-done", "out"]
    out = entry.operations["out"]
    assert (out.opcode, out.element) == ("fusion", "bf16")
    assert out.operands == ("weight.1", "copy-done")
    assert out.called == ("fused",)
    assert entry.operations["constant.1"].argument == "-7"
    assert entry.operations["copy-start"].element == ""
    gather = program.computations["fused"].operations["gather.4"]
    assert gather.operands == ("param_0.2", "param_1")
    assert "slice_sizes={1,4}" in gather.attributes


def test_what_stands_before_an_operands_name_is_not_it():
    line = "  ROOT %c = f32[3]{0} add(f32[3]{0} %p, /*index=1*/%q)"
    program = read(f"ENTRY %m (p: f32[3], q: f32[3]) -> f32[3] {{\n{line}\n}}\n")
    assert program.computations["m"].operations["c"].operands == ("p", "q")


@pytest.mark.parametrize(
    "line",
    [
        "  what is this",
        "  %a = f32[3]",
        "  %a = f32[3] add(%b, %c",
        "  %a = (f32[3], f32[3]",
        "  %a = f32[3] add(b, c)",
    ],
)
def test_a_line_that_cannot_be_read_is_an_error(line):
    text = f"ENTRY %m (p: f32[3]) -> f32[3] {{\n{line}\n}}\n"
    with pytest.raises(ValueError, match="expected an operation") as caught:
        read(text)
    assert str(caught.value) == f"a compiled program: got the line {line.strip()!r}, expected an operation"


@pytest.mark.parametrize("text", ["", "HloModule x\n", "%m (p: f32[3]) -> f32[3] {\n}\n"])
def test_no_entry_is_an_error(text):
    with pytest.raises(ValueError, match="expected one") as caught:
        read(text)
    assert str(caught.value) == f"a compiled program: got no entry in {len(text)} characters, expected one"


def test_a_head_that_cannot_be_read_is_an_error():
    with pytest.raises(ValueError, match="expected a computation's head") as caught:
        read("%weird {\n  what is this\n}\n")
    assert str(caught.value) == "a compiled program: got the line '%weird {', expected a computation's head"
