//! DiffDelta Feed Specification v1: verifiable JSON deltas, cursors, archives.
