"""Models written by hand for `benchmarks.trace_models`: a residual block and a small U-Net."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class ResidualBlock(nn.Module):
    """images [B, 16, 16, 16], target the same -> mean squared error; two convolutions and a skip.

    BatchNorm couples the documents of a batch: its statistics are of the whole micro-batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean loss, a scalar."""
        x = F.relu(self.norm1(self.first(images)))
        return F.mse_loss(F.relu(self.norm2(self.second(x)) + images), target)


def _twice(narrow: int, wide: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (narrow, wide):
        layers += [nn.Conv2d(before, wide, 3, padding=1), nn.GroupNorm(4, wide), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """images [B, 3, 32, 32], target the same -> mean squared error.

    Two levels down by pooling, up by a transposed convolution and by interpolation, with skips.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = _twice(3, 16), _twice(16, 32), _twice(32, 64)
        self.raise2 = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.raise1 = nn.Conv2d(32, 16, 1)
        self.up2, self.up1 = _twice(64, 32), _twice(32, 16)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean loss, a scalar."""
        fine = self.down1(images)
        coarse = self.down2(F.max_pool2d(fine, 2))
        x = self.raise2(self.middle(F.avg_pool2d(coarse, 2)))
        x = self.up2(torch.cat((x, coarse), dim=1))
        x = self.raise1(F.interpolate(x, scale_factor=2, mode="nearest"))
        x = self.up1(torch.cat((x, fine), dim=1))
        return F.mse_loss(self.head(x), target)
