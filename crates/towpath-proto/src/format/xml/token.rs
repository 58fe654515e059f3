//! Tokens of a document.

use std::borrow::Cow;

use super::namespaces::Ns;

/// Token of a document. An empty element gives a start and an end.
#[derive(Debug)]
pub(crate) enum XmlToken<'i> {
    Start(Tag<'i>),
    /// Character data, CDATA section or reference: unescaped, with `
    /// ` for every line end.
    Text(Cow<'i, str>),
    End,
    Eof,
}

/// Replacement of a reference.
pub(super) enum Reference {
    Text(Cow<'static, str>),
    Character(char),
}

/// Start tag. Its attributes are available from the reader until the next tag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tag<'i> {
    pub(crate) ns: Ns,
    /// Local name.
    pub(crate) local: &'i str,
    /// Name as written.
    pub(crate) name: &'i str,
    /// Offset of its `<`.
    pub(crate) offset: usize,
}

/// Attribute as written: name, and value with unresolved references.
pub(crate) type RawAttribute<'i> = (&'i str, &'i str);

impl<'i> Tag<'i> {
    /// Returns the prefix of the name; empty for none.
    pub(crate) fn prefix(&self) -> &'i str {
        &self.name[..(self.name.len() - self.local.len()).saturating_sub(1)]
    }
}
