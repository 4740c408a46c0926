"""Makes configs/lengths/*.csv from the table of published length shares.

    python benchmarks/length_files.py seqlen-distributions.csv configs/lengths

The table has one row per dataset and bin: `dataset,bucket_low,bucket_high,share_sequences_pct,
share_tokens_pct,n_sequences,mean_len,...,max_len,kind,source,notes`. Documents are counts
where the table has the number of sequences, percentages otherwise; tokens are left blank
(log-uniform inside the bin) where the table has no share of tokens. The open last bin ends at
the longest sequence.
"""

import csv
import sys
from pathlib import Path
from typing import Final

from shardwise.ir.curve import number_text
from shardwise.ir.lengths_file import read_lengths

FILES: Final = {
    "wikipedia.csv": "Wikipedia (FlexSP sample)",
    "github-code.csv": "GitHubCode (ParaDySe)",
    "grch38.csv": "GRCh38 genome (ParaDySe)",
    "prolong.csv": "ProLong (DistCA sample)",
    "chat.csv": "LMSYS-Chat-1M (Skrull)",
    "sft.csv": "ChatQA2-Long-SFT (Skrull)",
}
"""File to make: name of the dataset in the table."""


def longest(text: str) -> int:
    """Tokens of the longest sequence: `1823777`, or `309K` with K = 1024 as the table's notes
    read it."""
    return int(text[:-1]) * 1024 if text.endswith("K") else int(text)


def bin_line(row: dict[str, str]) -> str | None:
    """The CSV line of one row of the table; None for a bin without documents."""
    share = float(row["share_sequences_pct"])
    if share == 0:
        return None
    low = int(row["bucket_low"])
    high = int(row["bucket_high"]) if row["bucket_high"] else longest(row["max_len"])
    if not row["n_sequences"]:
        return f"{low},{high},{number_text(share)},"
    documents = round(share / 100 * int(row["n_sequences"]))
    total = int(row["n_sequences"]) * float(row["mean_len"])
    tokens = float(row["share_tokens_pct"]) / 100 * total
    # the shares are rounded: take the tokens back to what the documents can hold
    tokens = min(max(tokens, documents * (low + 1)), documents * high)
    return f"{low},{high},{documents},{round(tokens)}"


def histogram_text(rows: list[dict[str, str]]) -> str:
    """The whole CSV file of one dataset."""
    first = rows[0]
    source = f"{first['dataset']}: {first['kind']}; {first['source']}; {first['notes']}"
    lines = [f"# source: {source}", "S_low,S_high,documents,S_tokens"]
    lines += [line for row in rows if (line := bin_line(row)) is not None]
    return "\n".join(lines) + "\n"


def main(table: Path, folder: Path) -> None:
    """Write every file of FILES from the table, and read each back."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name, dataset in FILES.items():
        chosen = [row for row in rows if row["dataset"] == dataset]
        if not chosen:
            raise SystemExit(f"{table}: no rows of {dataset}; give the table that has them")
        path = folder / name
        path.write_text(histogram_text(chosen), encoding="utf-8")
        lengths = read_lengths(path)
        print(f"{path}: {len(lengths.bins)} bins, mean {lengths.mean_tokens:.1f} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python benchmarks/length_files.py TABLE.csv FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
