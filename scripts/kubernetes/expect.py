"""What checks expect."""
import time


class Failure(Exception):
    """What a check saw instead of what it expects."""


def expect(what, value, condition):
    if not condition(value):
        raise Failure(f"{what}: {value}")


def eventually(check, seconds=15):
    """Makes a check until it does not fail; returns how long that took."""
    begin = time.monotonic()
    while True:
        try:
            check()
            return time.monotonic() - begin
        except Failure:
            if time.monotonic() - begin > seconds:
                raise
            time.sleep(0.2)
