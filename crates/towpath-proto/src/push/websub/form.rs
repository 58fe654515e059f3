//! Forms as they are posted to a hub, and the arguments of its questions (WebSub 5.1:
//! `application/x-www-form-urlencoded`, UTF-8).

use percent_encoding::percent_decode_str;

/// The most parameters that are looked at.
pub const MAX_PARAMETERS: usize = 64;

/// Why a form cannot be read. The sender's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// A name or a value, decoded, is not UTF-8.
    #[error("parameter {index} is not UTF-8")]
    Encoding {
        /// Which, from 0.
        index: usize,
    },
    /// More than [`MAX_PARAMETERS`].
    #[error("more than {MAX_PARAMETERS} parameters")]
    TooMany,
    /// Given more than once where that has no meaning.
    #[error("{0} is given twice")]
    Twice(&'static str),
}

/// The parameters of a form, decoded, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Form(Vec<(String, String)>);

impl Form {
    /// Reads the body of a request, or a query string without its question mark.
    pub fn parse(body: &[u8]) -> Result<Self, FormError> {
        let text = std::str::from_utf8(body).map_err(|_| FormError::Encoding { index: 0 })?;
        let mut parameters = Vec::new();
        for (index, pair) in text.trim().split('&').filter(|pair| !pair.is_empty()).enumerate() {
            if index == MAX_PARAMETERS {
                return Err(FormError::TooMany);
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text| decode(text).ok_or(FormError::Encoding { index });
            parameters.push((decode(name)?, decode(value)?));
        }
        Ok(Self(parameters))
    }

    /// The value of a parameter, which may be there once. Empty is as good as absent.
    pub fn one(&self, name: &'static str) -> Result<Option<&str>, FormError> {
        let mut values = self.all(name);
        let first = values.next();
        if values.next().is_some() {
            return Err(FormError::Twice(name));
        }
        Ok(first.filter(|value| !value.is_empty()))
    }

    /// All values of a parameter, in the form's order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The last value of a parameter: arguments are appended to whatever a callback has already (WebSub 5.1.1).
    pub fn last<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).last()
    }
}

fn decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let form = Form::parse(b"a=1+2%203&b=%C3%A9&&c&a.b=x%26y").unwrap();
        assert_eq!(form.one("a"), Ok(Some("1 2 3")));
        assert_eq!(form.one("b"), Ok(Some("é")));
        assert_eq!(form.one("c"), Ok(None));
        assert_eq!(form.one("a.b"), Ok(Some("x&y")));
        assert_eq!(form.one("d"), Ok(None));
    }

    #[test]
    fn what_is_no_form_says_where() {
        assert_eq!(Form::parse(b"a=1&b=%ff"), Err(FormError::Encoding { index: 1 }));
        assert_eq!(Form::parse(b"\xff"), Err(FormError::Encoding { index: 0 }));
        assert_eq!(Form::parse("a=1&".repeat(65).as_bytes()), Err(FormError::TooMany));
        let form = Form::parse(b"a=1&a=2").unwrap();
        assert_eq!(form.one("a"), Err(FormError::Twice("a")));
        assert_eq!(form.last("a"), Some("2"));
    }

    proptest::proptest! {
        #[test]
        fn any_body_is_read_or_refused(body: Vec<u8>) {
            let _ = Form::parse(&body);
        }
    }
}
