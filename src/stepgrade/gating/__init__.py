"""Pass, or fail the build: baseline runs, conditions, budgets, waivers and the verdict."""
