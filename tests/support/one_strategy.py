"""The best plan of one strategy for all lengths, by the search's own price tables."""

from shardwise.planner import menu
from shardwise.planner.edges import Band, best_partition


def strategies(search):
    """(implementation, recompute) of the whole menu."""
    names = {name for table in search.tables for name in table.implementations}
    return [(name, again) for name in sorted(names) for again in menu.RECOMPUTES]


def expected_step_s(search, implementation, recompute):
    """Least expected step over all meshes, schemes, seats and bucket edges; None: nothing fits."""
    found = []
    for table in search.tables:
        if table.implementations != (implementation,):
            continue

        def best(low, high, table=table):
            options = [
                (option, price)
                for option, price in search.fitting(table, search.edges[high])
                if option.recompute is recompute
            ]
            bands = (
                Band(low, high, option, price,
                     search.counts.mean_slots(low, high, option.documents_per_slot))
                for option, price in options
            )  # fmt: skip
            return min(bands, key=lambda one: one.step_s, default=None)

        bands = best_partition(len(search.edges), best)
        if bands is not None:
            found.append(sum(band.step_s for band in bands) + table.fixed_s)
    return min(found, default=None)


def fastest(search, length):
    """(implementation, recompute) with the least seconds a document, whatever fits."""
    priced = _prices(search, length)
    return min(priced, key=lambda kind: min(time_s for time_s, _ in priced[kind]))


def least_bytes(search, length, kind):
    """The least peak of any option of a kind for a slot of documents of this length."""
    return min(peak for _, peak in _prices(search, length)[kind])


def _prices(search, length):
    """(implementation, recompute) -> (seconds a document, peak bytes) of all options."""
    from shardwise.planner.candidates import options

    found = {}
    for table in search.tables:
        mesh = table.activations.programs.mesh
        for option in options(mesh, table.implementations):
            if option.seats > 8:
                continue
            price = table.price(option, length)
            kind = (option.implementation, option.recompute)
            entry = (price.time_s / option.documents_per_slot, price.peak_bytes)
            found.setdefault(kind, []).append(entry)
    return found
