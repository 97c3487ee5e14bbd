"""The golden of the second operator in torch, and a kernel that is wrong in one way."""

import torch


def row_scale(x, w):
    return x * w


def rounded_to_zero(x, w):
    """Cut the exact product, which float64 holds, where it should be rounded."""
    exact = x.double() * w.double()
    near = exact.to(x.dtype)
    return torch.where(near.double().abs() > exact.abs(), torch.nextafter(near, torch.zeros_like(near)), near)
