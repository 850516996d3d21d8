"""The team's server: pages, an interface for programs, notifications, and answers for assistants."""
