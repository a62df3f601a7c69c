from __future__ import annotations

import torch
import torch.nn.functional as F

from fedstill.core.class_losses import class_weighted_nll


def test_a_batch_that_weighs_nothing_has_no_loss_and_no_gradient() -> None:
    logits = torch.tensor([[1.0, 2.0], [0.0, 3.0]], requires_grad=True)
    loss = class_weighted_nll(F.log_softmax(logits, dim=1), torch.tensor([0, 0]), torch.tensor([0.0, 1.0]))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_other_batches_have_the_loss_of_torch() -> None:
    said = F.log_softmax(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), dim=1)
    labels, weights = torch.tensor([0, 1]), torch.tensor([0.0, 2.0])
    assert torch.equal(class_weighted_nll(said, labels, weights), F.nll_loss(said, labels, weights))
    assert torch.equal(class_weighted_nll(said, labels), F.nll_loss(said, labels))
