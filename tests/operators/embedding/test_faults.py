"""The catalogue of faults: constants, each with two sentences, each with a mutant."""

from __future__ import annotations

import re

import pytest
from mutants.embedding import JAX_MUTANTS, TORCH_MUTANTS

from xref.operators.embedding import faults
from xref.operators.embedding.faults import FAULTS
from xref.spec import Fault


def test_a_fault_is_a_constant_of_its_name_and_the_catalogue_holds_them_in_order():
    constants = {name: value for name, value in vars(faults).items() if isinstance(value, Fault)}
    assert tuple(constants.values()) == FAULTS
    assert {name: fault.name.replace("-", "_").upper() for name, fault in constants.items()} == {
        name: name for name in constants
    }


def test_faults_have_names_of_their_own_in_kebab_case():
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_says_in_a_sentence_each_how_it_looks_and_what_it_does(fault):
    for sentence in (fault.looks, fault.does):
        assert re.fullmatch(r"[A-Z0-9-][^.]*(\.\d[^.]*)*\.", sentence)
    assert re.fullmatch(r"([\w.-]+/[\w.-]+#\d+)?", fault.report)


def test_every_fault_has_a_mutant():
    mutants = [*TORCH_MUTANTS.values(), *JAX_MUTANTS.values()]
    assert {fault.name for fault in FAULTS} - {mutant.fault for mutant in mutants} == set()
