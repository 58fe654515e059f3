//! HTML to plain text, and what hides in it.
