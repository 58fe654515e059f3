//! `${NAME}` and `${file:PATH}` in the texts of a configuration.

use std::borrow::Cow;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::secret::Secret;
use super::token::read_secret;

/// Length from which a value is hidden in errors. A shorter one is no secret, and is in many words by chance.
const HIDDEN_LENGTH: usize = 4;

/// Values that replaced variables, so that errors can show the variables instead.
#[derive(Debug, Default)]
pub(super) struct Variables {
    used: Vec<(Secret, String)>,
}

/// A variable that cannot be replaced: the error, and its place in the text.
pub(super) struct VariableError {
    pub(super) message: String,
    pub(super) at: usize,
}

/// Source of environment variables.
pub(super) type Environment<'a> = dyn Fn(&str) -> Result<String, std::env::VarError> + 'a;

/// Replacement of variables: where their values come from.
pub(super) struct Replacer<'a> {
    /// Base of relative paths.
    pub(super) folder: &'a Path,
    pub(super) environment: &'a Environment<'a>,
    pub(super) variables: Variables,
    /// Variables that could not be replaced.
    pub(super) errors: Vec<VariableError>,
}

impl Replacer<'_> {
    /// Replaces the variables in all texts of a table. Keys are left as they are.
    ///
    /// The parsed table is changed, not the file's text: a value with a quotation mark or a line break stays one value.
    pub(super) fn table(&mut self, table: &mut DeTable<'_>) {
        table.iter_mut().for_each(|(_, value)| self.value(value));
    }

    fn value(&mut self, value: &mut Spanned<DeValue<'_>>) {
        let at = value.span().start;
        match value.get_mut() {
            DeValue::String(text) if text.contains("${") => match self.text(text) {
                Ok(replaced) => *text = Cow::Owned(replaced),
                Err(message) => self.errors.push(VariableError { message, at }),
            },
            DeValue::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            DeValue::Table(table) => self.table(table),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) -> Result<String, String> {
        let mut replaced = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            // `$${` stands for `${`.
            if let Some(before) = before.strip_suffix('$') {
                replaced.push_str(before);
                replaced.push_str("${");
                rest = &from[2..];
                continue;
            }
            let (name, after) =
                from[2..].split_once('}').ok_or("a ${ has no }; write $${ for the characters ${")?;
            let value = self.named(name)?;
            replaced.push_str(before);
            replaced.push_str(value.expose());
            self.variables.used.push((value, name.to_owned()));
            rest = after;
        }
        replaced.push_str(rest);
        Ok(replaced)
    }

    fn named(&self, name: &str) -> Result<Secret, String> {
        if let Some(path) = name.strip_prefix("file:") {
            let path = self.folder.join(path);
            return read_secret(&path).map_err(|e| format!("${{{name}}}: {}: {e}", path.display()));
        }
        let is_name = |name: &str| {
            let mut bytes = name.bytes();
            bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
                && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if !is_name(name) {
            let why = "it is neither an environment variable nor file:PATH; write $${ for the characters ${";
            return Err(format!("${{{name}}}: {why}"));
        }
        let value = (self.environment)(name)
            .map_err(|e| format!("${{{name}}}: {e}; set it, or write $${{ for ${{"))?;
        Ok(value.into())
    }
}

impl Variables {
    /// Replaces the values in an error with the variables.
    pub(super) fn hide(&self, mut text: String) -> String {
        for (value, name) in &self.used {
            let value = value.expose();
            if value.len() < HIDDEN_LENGTH {
                continue;
            }
            let variable = format!("${{{name}}}");
            text = text.replace(value, &variable);
            // Errors quote values, with line breaks and the like escaped.
            let quoted = format!("{value:?}");
            text = text.replace(quoted.trim_matches('"'), &variable);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), "from a file\r\n").unwrap();
        let environment = |name: &str| match name {
            "KEY" => Ok("hush \"x\"\n".to_owned()),
            _ => Err(std::env::VarError::NotPresent),
        };
        let variables = Variables::default();
        Replacer { folder: folder.path(), environment: &environment, variables, errors: Vec::new() }
            .text(text)
    }

    #[test]
    fn variables_and_files_are_replaced() {
        for (text, shown) in [
            ("a ${KEY}b", "a hush \"x\"\nb"),
            ("${KEY}${KEY}", "hush \"x\"\nhush \"x\"\n"),
            ("Bearer ${file:key}", "Bearer from a file"),
            ("$${KEY} $x {y}", "${KEY} $x {y}"),
            ("ä$", "ä$"),
        ] {
            assert_eq!(replaced(text).unwrap(), shown);
        }
        for (bad, needle) in [
            ("${KEY", "no }"),
            ("${NONE}", "${NONE}"),
            ("${a b}", "$${"),
            ("${}", "neither"),
            ("${file:x}", "x: "),
        ] {
            let error = replaced(bad).unwrap_err();
            assert!(error.contains(needle), "{bad}: {error}");
        }
    }
}
