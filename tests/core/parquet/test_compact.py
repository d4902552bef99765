"""The codec of Thrift's compact protocol: what it reads it writes again, and nothing else gets through."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.parquet import compact
from headrace.core.parquet.compact import BINARY, I16, I32, I64, LIST, STRUCT, TRUE, NotUnderstood

SHAPE: compact.Shape = {1: I32, 2: I64, 3: BINARY, 4: TRUE, 5: LIST, 20: {1: I16}, 300: [{2: BINARY, 7: I64}]}


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=300),
    st.lists(st.binary(max_size=20), max_size=40),
    st.integers(-(2**15), 2**15 - 1),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
)
def test_what_is_written_is_read_again(small, big, text, texts, tiny, numbers):
    made = {
        1: compact.of_number(I32, small),
        2: compact.of_number(I64, big),
        3: compact.of_binary(text),
        4: (TRUE, b""),
        5: compact.of_binaries(texts),
        20: (STRUCT, {1: compact.of_number(I16, tiny)}),
        300: (LIST, [{7: compact.of_number(I64, each)} for each in numbers]),
    }
    data = compact.write_struct(made)
    read, end = compact.read_struct(data, 0, SHAPE)
    assert (read, end) == (made, len(data))
    assert compact.write_struct(read) == data
    assert compact.number(read[1]) == small
    assert compact.number(read[2]) == big
    assert compact.binary(read[3]) == text
    assert compact.binaries(read[5]) == texts
    assert compact.number(read[20][1][1]) == tiny
    assert [compact.number(each[7]) for each in read[300][1]] == numbers
    for cut in range(len(data)):
        with pytest.raises(NotUnderstood):
            compact.read_struct(data[:cut], 0, SHAPE)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"\x15\x02", "cut off"),
        (b"\x15\x02\x05\x02\x04\x00", "twice"),
        (b"\x16\x02\x00", "has the type"),
        (b"\x65\x02\x00", "not known"),
        (b"\x15" + b"\xff" * 11 + b"\x00\x00", "too many bytes"),
        (b"\x38\xff\xff\xff\xff\x0f\x00", "cut off"),
        (b"\x59\xf5\xff\xff\xff\xff\x7f\x00", "longer"),
        (b"\x59" + b"\x19" * 40 + b"\x00", "too deeply"),
        (b"\x59\x1b\x00\x00", "has the type 11"),
        (b"\x19\x15\x02\x00", "has the type 9"),
        (b"\x0c\x28\x15\x02\x00\x00", "has the type 5"),
    ],
)
def test_other_bytes_are_refused(data, why):
    with pytest.raises(NotUnderstood, match=why):
        compact.read_struct(data, 0, SHAPE)


def test_a_number_that_others_would_cut_is_refused():
    big = compact.varint(2**33 << 1)
    read, _ = compact.read_struct(b"\x15" + big + b"\0", 0, SHAPE)
    with pytest.raises(NotUnderstood, match="not an integer"):
        compact.number(read[1])
    with pytest.raises(NotUnderstood):
        compact.of_number(I32, 2**31)
    read, _ = compact.read_struct(b"\x26" + b"\xff" * 9 + b"\x7f\0", 0, SHAPE)
    with pytest.raises(NotUnderstood, match="too big"):
        compact.number(read[2])


def test_plain_values_are_skipped_whatever_they_are():
    inner = (
        b"\x11\x12\x13\x05\x14\x02\x17" + struct.pack("<d", 1.5) + b"\x18\x02ab\x19\x21\x01\x02\x1c\x00\x00"
    )
    read, end = compact.read_struct(b"\x59\x1c" + inner + b"\x00", 0, SHAPE)
    assert end == len(inner) + 3 and read[5] == (LIST, b"\x1c" + inner)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        read, end = compact.read_struct(data, 0, SHAPE)
    except NotUnderstood:
        return
    assert end <= len(data)
    assert compact.read_struct(compact.write_struct(read), 0, SHAPE)[0] == read
