"""How layers are dealt: nothing is lost, equal where they divide, entrance and exit count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind, device_of
from shardwise.planner.stage_layers import stage_layers

PLAIN, INTERLEAVED, ZB_V = (
    ScheduleKind.ONE_F_ONE_B,
    ScheduleKind.INTERLEAVED,
    ScheduleKind.ZB_V,
)


def counts(layers, devices, chunks=1, schedule=PLAIN):
    return [part.layers for part in stage_layers(layers, devices, chunks, schedule)]


@given(st.integers(2, 16), st.integers(1, 8), st.integers(-2, 128))
def test_every_layer_is_somewhere(devices, chunks, more):
    layers = devices * chunks + more
    parts = stage_layers(layers, devices, chunks, INTERLEAVED)
    assert sum(part.layers for part in parts) == layers
    assert len(parts) == devices * chunks and min(part.layers for part in parts) >= 0
    assert [part.first for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    places = [device_of(INTERLEAVED, place, devices) for place in range(len(parts))]
    assert [part.device for part in parts] == places


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 12))
def test_layers_that_divide_are_dealt_equally(devices, chunks, each):
    """Megatron-LM's division: layers / (pp x virtual stages) each."""
    assert set(counts(devices * chunks * each, devices, chunks, INTERLEAVED)) == {each}


@given(st.integers(2, 16), st.integers(1, 8), st.integers(-2, 128))
def test_otherwise_entrance_and_exit_count_as_a_layer(devices, chunks, more):
    """Loads, with one for the embedding and one for the head, differ by one at most."""
    layers = devices * chunks + more
    if layers % (devices * chunks):
        loads = counts(layers, devices, chunks, INTERLEAVED)
        loads[0] += 1
        loads[-1] += 1
        assert max(loads) - min(loads) <= 1


def test_22_layers_on_8_devices():
    """1.5B of Qi et al. 2024 (arXiv:2401.10241, table 3): 22 layers, since first and last stage
    have the embedding and the head."""
    assert counts(22, 8) == [2, 3, 3, 3, 3, 3, 3, 2]


@pytest.mark.parametrize(
    ("layers", "expected"), [(23, [2, 4, 3, 3, 3, 3, 3, 2]), (29, [2, 4, 4, 4, 4, 4, 4, 3])]
)
def test_what_is_left_over_goes_to_the_first_parts_between(layers, expected):
    assert counts(layers, 8) == expected


def test_v_schedule_puts_first_and_last_on_one_device():
    parts = stage_layers(16, 4, 2, ZB_V)
    assert [part.device for part in parts] == [0, 1, 2, 3, 3, 2, 1, 0]


@given(st.integers(3, 8), st.integers(1, 8))
def test_more_parts_than_layers_entrance_and_exit_are_refused(devices, chunks):
    with pytest.raises(InvalidValueError, match="lower pp or chunks"):
        stage_layers(devices * chunks - 3, devices, chunks, INTERLEAVED)


def test_entrance_and_exit_may_be_parts_of_their_own():
    """22 layers in 24 parts: 1F1B-I of Qi et al. 2024."""
    assert counts(22, 8, 3, INTERLEAVED) == [0, *[1] * 22, 0]
