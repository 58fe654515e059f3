//! Templates: text with pointers in braces.

use std::iter;

/// A part of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text that stays as it is.
    Text(&'a str),
    /// What stands between braces.
    Pointer(&'a str),
    /// What stands after a brace that is not closed before the next one opens.
    Unclosed(&'a str),
}

/// The parts of a template, in turn.
pub(super) fn parts(template: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = template;
    iter::from_fn(move || {
        let Some(inner) = rest.strip_prefix('{') else {
            let (text, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
            rest = after;
            return (!text.is_empty()).then_some(Part::Text(text));
        };
        match inner.split_once('}') {
            Some((pointer, after)) if !pointer.contains('{') => {
                rest = after;
                Some(Part::Pointer(pointer))
            }
            _ => {
                rest = "";
                Some(Part::Unclosed(inner))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_falls_into_texts_and_pointers() {
        let of = |template| parts(template).collect::<Vec<_>>();
        assert_eq!(of("{/a}{/b}"), [Part::Pointer("/a"), Part::Pointer("/b")]);
        assert_eq!(of("x{}y}"), [Part::Text("x"), Part::Pointer(""), Part::Text("y}")]);
        assert_eq!(of("x{/a"), [Part::Text("x"), Part::Unclosed("/a")]);
        assert_eq!(of("{/a?b={/c}"), [Part::Unclosed("/a?b={/c}")]);
        assert_eq!(of(""), []);
    }
}
