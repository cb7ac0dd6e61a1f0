"""A reader of TensorBoard's event files, for tests: `python3 tests/read_events.py FILE` prints a line "step tag value" a scalar.

Exits 1 where a CRC or a length is wrong. Where the tensorboard package is installed, its own reader must find the same.
"""
import struct
import sys


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8]), "CRC of a length"
        event, data = data[12:12 + length], data[12 + length:]
        assert len(event) == length and struct.unpack("<I", data[:4])[0] == masked_crc(event), "CRC of an event"
        data = data[4:]
        yield event


def fields(data):
    def varint():
        nonlocal data
        value = shift = 0
        while True:
            byte, data = data[0], data[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while data:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        value, data = data[:size], data[size:]
        yield key >> 3, struct.unpack({1: "<d", 5: "<f"}[key & 7], value)[0] if key & 7 != 2 else value


def scalars(path):
    events = [dict(fields(r)) for r in records(open(path, "rb").read())]
    assert events[0][3] == b"brain.Event:2" and all(e[1] > 1e9 for e in events)
    for e in events[1:]:
        value = dict(fields(dict(fields(e[5]))[1]))
        yield e.get(2, 0), value[1].decode(), value[2]


found = list(scalars(sys.argv[1]))
try:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
except ImportError:
    pass
else:
    theirs = [(e.step, v.tag) for e in EventFileLoader(sys.argv[1]).Load() for v in e.summary.value]
    assert theirs == [f[:2] for f in found], theirs
for step, tag, value in found:
    print(step, tag, f"{value:g}")
