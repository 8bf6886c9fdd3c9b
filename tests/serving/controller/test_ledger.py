from hypothesis import given
from hypothesis import strategies as st

from serving.controller.ledger import IDLE, Ledger, Owner

DEVICES = [f"n/{number}" for number in range(4)]
OWNERS = [IDLE, Owner("group", "g0"), Owner("group", "g1"), Owner("job", "j0")]

moves = st.lists(
    st.tuples(st.lists(st.sampled_from(DEVICES), unique=True), st.sampled_from(OWNERS), st.sampled_from(OWNERS))
)


@given(moves)
def test_each_device_has_one_owner_whatever_is_tried(tried):
    ledger = Ledger(DEVICES)
    expected = dict.fromkeys(DEVICES, IDLE)
    for devices, before, after in tried:
        is_right = all(expected[device] == before for device in devices)
        assert ledger.can_move(devices, before) == is_right
        if is_right:
            ledger.move(devices, before, after)
            expected.update(dict.fromkeys(devices, after))
        assert ledger.owners == expected
    assert sorted(device for owner in OWNERS for device in ledger.owned_by(owner)) == sorted(DEVICES)
