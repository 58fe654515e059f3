//! What the XML formats share: namespaces, character sets, limits.
