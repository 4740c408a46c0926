"""What all tests share: the treatment of skips, and how hypothesis draws its examples."""

from hypothesis import settings

pytest_plugins = ["tests.support.skips", "tests.ranks.fixtures"]

# `make test` draws the same examples on every run; `make test-all` draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")
