//! Simple Update Protocol: one document that says which feeds moved.
