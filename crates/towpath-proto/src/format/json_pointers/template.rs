//! Templates: text with pointers in braces.

use std::iter;

/// Part of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplatePart<'a> {
    /// Literal text.
    Text(&'a str),
    /// Pointer between braces.
    Pointer(&'a str),
    /// Text after a brace that is not closed before the next one opens.
    Unclosed(&'a str),
}

/// Iterates over the parts of a template.
pub(super) fn parts(template: &str) -> impl Iterator<Item = TemplatePart<'_>> {
    let mut rest = template;
    iter::from_fn(move || {
        let Some(inner) = rest.strip_prefix('{') else {
            let (text, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
            rest = after;
            return (!text.is_empty()).then_some(TemplatePart::Text(text));
        };
        match inner.split_once('}') {
            Some((pointer, after)) if !pointer.contains('{') => {
                rest = after;
                Some(TemplatePart::Pointer(pointer))
            }
            _ => {
                rest = "";
                Some(TemplatePart::Unclosed(inner))
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
        assert_eq!(of("{/a}{/b}"), [TemplatePart::Pointer("/a"), TemplatePart::Pointer("/b")]);
        assert_eq!(
            of("x{}y}"),
            [TemplatePart::Text("x"), TemplatePart::Pointer(""), TemplatePart::Text("y}")]
        );
        assert_eq!(of("x{/a"), [TemplatePart::Text("x"), TemplatePart::Unclosed("/a")]);
        assert_eq!(of("{/a?b={/c}"), [TemplatePart::Unclosed("/a?b={/c}")]);
        assert_eq!(of(""), []);
    }
}
