"""Pass, or fail the build: earlier runs, budgets, waivers and the verdict."""
