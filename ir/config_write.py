"""Hardware and software profiles and clusters as TOML text, which `config_files` reads back."""

import json

from shardwise.ir.cluster import Cluster
from shardwise.ir.curve import Constant, Curve, number_text
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.link import CollectiveCurve
from shardwise.ir.software import SoftwareProfile


def hardware_toml(profile: HardwareProfile) -> str:
    """The TOML file of a hardware profile."""
    lines = [
        f"name = {_text(profile.name)}",
        f"device = {_text(profile.device)}",
        f"memory_bytes = {_figure(profile.memory_bytes)}",
        f"memory_bandwidth_bytes_per_s = {_figure(profile.memory_bandwidth)}",
        f"context_bytes = {_figure(profile.context_bytes)}",
        f"group_bytes = {_figure(profile.group_bytes)}",
        *([f"processors = {_figure(profile.processors)}"] if profile.processors else []),
        "",
        "[peak_flops_per_s]",
    ]
    lines += [f"{dtype} = {_figure(peak)}" for dtype, peak in profile.peak_flops_per_s]
    for key, curve in profile.efficiency:
        unit = "bytes" if curve.x_unit == "bytes" else "flop"
        lines += ["", f"[efficiency.{_text(key)}]", *_curve(curve, unit, "ratio")]
    for link in profile.links:
        lines += ["", "[[links]]", f"name = {_text(link.name)}"]
        for field in ("latency_s", "overlap", "contention"):
            lines.append(f"{field} = {_figure(getattr(link, field))}")
        if not link.collectives:
            lines.append("collectives = []")
        for item in link.collectives:
            lines += ["", "[[links.collectives]]", *_collective(item)]
    if not profile.links:
        lines.insert(6, "links = []")
    return "\n".join(lines) + "\n"


def software_toml(profile: SoftwareProfile) -> str:
    """The TOML file of a software profile."""
    lines = [
        f"name = {_text(profile.name)}",
        f"version_range = {_text(profile.version_range)}",
        f"device = {_text(profile.device)}",
        f"efficiency = {_figure(profile.efficiency)}",
        f"launch_floor_s = {_figure(profile.launch_floor_s)}",
    ]
    return "\n".join(lines) + "\n"


def cluster_toml(cluster: Cluster) -> str:
    """The TOML file of a cluster."""
    lines = [f"name = {_text(cluster.name)}", f"hardware = {_text(cluster.hardware)}"]
    if cluster.memory_limit_bytes is not None:
        lines.append(f"memory_limit_bytes = {cluster.memory_limit_bytes}")
    if cluster.ranks_per_device != 1:
        lines.append(f"ranks_per_device = {cluster.ranks_per_device}")
    for level in cluster.levels:
        lines += ["", "[[levels]]", f"name = {_text(level.name)}", f"size = {level.size}"]
        lines.append(f"link = {_text(level.link)}")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """A TOML basic string (a JSON string of printable characters is one)."""
    return json.dumps(text, ensure_ascii=False)


def _figure(constant: Constant) -> str:
    value = number_text(constant.value)
    return f"{{ value = {value}, source = {_text(constant.source)} }}"


def _curve(curve: Curve, x: str, y: str) -> list[str]:
    return [
        f"{x} = [{', '.join(map(number_text, curve.x))}]",
        f"{y} = [{', '.join(map(number_text, curve.y))}]",
        f"source = {_text(curve.source)}",
    ]


def _collective(item: CollectiveCurve) -> list[str]:
    lines = [f"kind = {_text(item.kind)}"]
    if item.group_size is None:
        return lines + _curve(item.curve, "bytes", "bus_bytes_per_s")
    lines.append(f"group_size = {item.group_size}")
    if item.ranks_per_device != 1:
        lines.append(f"ranks_per_device = {item.ranks_per_device}")
    return lines + _curve(item.curve, "bytes", "seconds")
