"""Gradient ascent: steps by hand, what is kept on the way, and where it stops."""

import pytest
import torch

from nearkin.attacks import L2, Ball, Found, LInf, ascend, climb, usual_step
from nearkin.attacks.ascent import nothing_found
from nearkin.errors import DataError


class Sum:
    """Raise the sum of the coordinates; the aim is a limit, another one for each input."""

    def __init__(self, limits):
        self.limits = torch.tensor(limits)
        self.asked = []

    def __call__(self, points, rows):
        self.asked.append(rows.tolist())
        values = points.sum(dim=1)
        return values, values.detach() >= self.limits[rows]


def test_an_input_is_left_alone_once_its_aim_is_reached():
    goal = Sum([0.0, 0.25, 0.5, 9.0])
    start = torch.zeros(4, 1)
    found = ascend(goal, start, Ball(start, 1.0, LInf(), None), steps=3, step=0.3)
    assert goal.asked == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    torch.testing.assert_close(found.points, torch.tensor([[0.0], [0.3], [0.6], [0.9]]))
    assert found.reached.tolist() == [True, True, True, False]
    torch.testing.assert_close(found.values, torch.tensor([0.0, 0.3, 0.6, 0.9]))


def test_the_best_point_on_the_way_is_kept():
    """A step that is too long crosses the top: what was higher before is given back."""

    def hill(points, rows):
        return -(points - 0.5).square().sum(dim=1), torch.zeros(len(points), dtype=torch.bool)

    start = torch.tensor([[0.45], [0.0]])
    found = ascend(hill, start, Ball(start, 2.0, L2(), None), steps=1, step=0.4)
    torch.testing.assert_close(found.points, torch.tensor([[0.45], [0.4]]))


def test_no_steps_look_at_the_start_alone():
    goal = Sum([0.5, 5.0])
    found = ascend(goal, torch.ones(2, 2), Ball(torch.ones(2, 2), 1.0, L2(), None), steps=0, step=0.0)
    assert goal.asked == [[0, 1]]
    assert torch.equal(found.points, torch.ones(2, 2))
    assert found.reached.tolist() == [True, False]


def test_it_asks_for_gradients_by_itself():
    start = torch.ones(2, 2)
    ball = Ball(start, 1.0, LInf(), None)
    with torch.no_grad():
        found = ascend(Sum([9.0, 9.0]), start, ball, steps=2, step=0.1)
        climbed = climb(lambda points: points.sum(dim=1), start, ball, steps=2, step=0.1)
    torch.testing.assert_close(found.points, torch.full((2, 2), 1.2))
    torch.testing.assert_close(climbed, found.points)


def test_where_there_is_no_number_there_is_no_way_up():
    def broken(points, rows):
        return (points * torch.tensor([1.0, torch.nan])).nansum(dim=1), torch.zeros(len(points), dtype=torch.bool)

    start = torch.zeros(1, 2)
    found = ascend(broken, start, Ball(start, 1.0, LInf(), None), steps=2, step=0.25)
    assert torch.equal(found.points, torch.tensor([[0.5, 0.0]]))


@pytest.mark.parametrize(("steps", "step"), [(-1, 0.1), (1, -0.1), (1, float("nan"))])
def test_steps_that_make_no_sense_are_refused(steps, step):
    with pytest.raises(DataError, match="step"):
        ascend(Sum([1.0]), torch.zeros(1, 1), Ball(torch.zeros(1, 1), 1.0, L2()), steps=steps, step=step)


def test_climbing_is_the_plain_loop():
    """Whatever is met on the way: eight steps by hand, on a function with many tops."""
    centres = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = Ball(centres, 0.3, L2())
    x = centres.clone()
    for _ in range(8):
        gradient = 9 * torch.cos(9 * x)
        x = x + 0.1 * gradient / gradient.norm(dim=1, keepdim=True)
        way = x - centres
        x = (centres + way * (0.3 / way.norm(dim=1, keepdim=True)).clamp(max=1)).clamp(0, 1)
    found = climb(lambda points: torch.sin(9 * points).sum(dim=1), centres, ball, steps=8, step=0.1)
    torch.testing.assert_close(found, x)
    assert not found.requires_grad


def test_what_is_worse_for_the_defender_is_taken():
    found = nothing_found(torch.zeros(5, 1))
    everyone = torch.arange(5)
    found.take(everyone, torch.ones(5, 1), torch.tensor([1.0, 1, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 0]).bool())
    # higher; lower but reached; higher but not reached; higher and reached; no number
    values, reached = torch.tensor([2.0, 0, 5, 3, torch.nan]), torch.tensor([0, 1, 0, 1, 0]).bool()
    found.take(everyone, torch.full((5, 1), 2.0), values, reached)
    assert found.points.squeeze(1).tolist() == [2, 2, 1, 2, 1]
    assert found.values.tolist() == [2, 0, 1, 3, 1]
    assert found.reached.tolist() == [False, True, True, True, False]
    assert isinstance(found, Found)


def test_the_usual_step_crosses_the_ball():
    assert usual_step(0.4, 1) == 0.4
    assert usual_step(0.4, 10) == pytest.approx(0.1)
    assert usual_step(0.4, 0) == 0.4
