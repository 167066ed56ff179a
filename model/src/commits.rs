//! Commits.
