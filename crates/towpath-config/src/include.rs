//! `include`: further files of a configuration.

use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigProblem;
use super::files::{self, ConfigTexts};

/// Most files that include each other in a row. Each takes a part of the stack.
const MAX_DEPTH: usize = 16;

/// A pattern, or a list of patterns, of further files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct IncludeConfig(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a pattern such as \"feeds.d/*.toml\", or a list of patterns")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for IncludeConfig {
    fn from(form: OneOrMany) -> Self {
        match form {
            OneOrMany::One(pattern) => Self(vec![pattern]),
            OneOrMany::Many(patterns) => Self(patterns),
        }
    }
}

impl JsonSchema for IncludeConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IncludeConfig".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
            "x-type": "pattern of paths, or a list of them",
        })
    }
}

/// Reads the files that the texts include, and what those include.
pub(super) struct Includer<'a> {
    /// Base of relative paths: the main file's folder.
    pub(super) folder: &'a Path,
    pub(super) texts: &'a mut ConfigTexts,
    pub(super) problems: &'a mut Vec<ConfigProblem>,
    /// Files that lead to the one that is being read, by their real paths.
    pub(super) chain: Vec<PathBuf>,
}

impl Includer<'_> {
    /// Reads the files that a text includes. `start` is the text's offset.
    pub(super) fn include(&mut self, text: &str, start: usize) {
        // Most files include none, and are not parsed twice.
        if !text.contains("include") {
            return;
        }
        // Errors are told when the text is read. What it includes is found in spite of them.
        let (table, _) = DeTable::parse_recoverable(text);
        let Some(value) = table.get_ref().get("include") else { return };
        let patterns = match value.get_ref() {
            DeValue::Array(values) => values.iter().collect(),
            _ => vec![value],
        };
        for pattern in patterns {
            let at = start + pattern.span().start;
            match pattern.get_ref() {
                DeValue::String(pattern) => self.pattern(pattern, at),
                // The main file's is told by its type.
                _ if start == 0 => {}
                _ => self.problem(at, "include is no pattern such as \"feeds.d/*.toml\"".into()),
            }
        }
    }

    fn pattern(&mut self, pattern: &str, at: usize) {
        let full = self.folder.join(pattern);
        let shown = full.to_string_lossy();
        let files = match glob::glob(&shown) {
            Ok(files) => files,
            Err(e) => return self.problem(at, format!("include {pattern:?} is not a pattern: {e}")),
        };
        let mut is_empty = true;
        for file in files {
            is_empty = false;
            match file {
                Ok(file) => self.file(&file, at),
                Err(e) => self.problem(at, format!("include {pattern:?}: cannot read a folder: {e}")),
            }
        }
        // A folder may be empty as yet; a name without a wildcard is a mistake.
        if is_empty && !pattern.contains(['*', '?', '[']) {
            self.problem(at, format!("include {pattern:?}: there is no file {shown}"));
        }
    }

    fn file(&mut self, path: &Path, at: usize) {
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(e) => return self.problem(at, format!("include: cannot read {}: {e}", path.display())),
        };
        // By real paths: a symbolic link may lead back to a file under another name.
        if let Some(first) = self.chain.iter().position(|outer| *outer == real) {
            let names: Vec<_> =
                self.chain[first..].iter().chain([&real]).map(|p| p.display().to_string()).collect();
            return self.problem(at, format!("include: the files include each other: {}", names.join(" → ")));
        }
        // A generated row of files has no circle, and would overflow the stack of the server that reads it
        // again.
        if self.chain.len() > MAX_DEPTH {
            let message = format!("include: more than {MAX_DEPTH} files include each other in a row");
            return self.problem(at, message);
        }
        // Two patterns may both match it.
        if self.texts.has_file(path) {
            return;
        }
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) => return self.problem(at, format!("include: cannot read {}: {e}", path.display())),
        };
        let text = match files::utf8_text(path, bytes) {
            Ok(text) => text,
            Err(problem) => return self.problems.push(problem),
        };
        let start = self.texts.add(path.display().to_string(), Some(path.to_owned()), text.clone());
        self.chain.push(real);
        self.include(&text, start);
        self.chain.pop();
    }

    fn problem(&mut self, at: usize, message: String) {
        let problem = self.texts.problem(Some(at), message);
        self.problems.push(problem);
    }
}

/// Removes the key from a file that is included itself: its own includes were read.
pub(super) fn without_include<'a>(mut table: Spanned<DeTable<'a>>) -> DeTable<'a> {
    table.get_mut().remove("include");
    table.into_inner()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Config;

    fn load(files: &[(&str, &str)]) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("feeds.d")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let loaded = Config::load(Some(&folder.path().join("towpath.toml"))).map_err(|e| e.to_string());
        loaded.map_err(|error| error.replace(&format!("{}/", folder.path().display()), ""))
    }

    #[test]
    fn included_files_are_read_as_if_they_stood_in_the_main_one() {
        let config = load(&[
            ("towpath.toml", "include = 'feeds.d/*.toml'\n[server]\nwaiters = 5\n[[feed]]\nid = 'first'\n"),
            ("feeds.d/b.toml", "[[feed]]\nid = 'third'\n[feed.source]\nurl = 'b.xml'\n"),
            ("feeds.d/a.toml", "include = ['feeds.d/c.inc', 'feeds.d/b*.toml']\n[server]\nfetches = 3\n[[feed]]\nid = 'second'\n"),
            ("feeds.d/c.inc", "[server.rate_limit]\nburst = 1234\n"),
        ])
        .unwrap();
        let ids: Vec<_> = config.feeds.iter().map(|feed| feed.id().to_string()).collect();
        assert_eq!(ids, ["first", "second", "third"]);
        let server = &config.server;
        assert_eq!((server.waiters, server.fetches, server.rate_limit.burst), (5, 3, 1234));
        assert_eq!(config.files.len(), 4);
        assert!(load(&[("towpath.toml", "include = ['feeds.d/*.toml']")]).is_ok(), "no file is no mistake");
    }

    /// A row of thousands of files overflowed the stack, and ended the server that read it again.
    #[test]
    fn a_row_of_files_has_a_limit() {
        let row = |count: usize| -> Vec<(String, String)> {
            let file = |n: usize| (format!("{n}.toml"), format!("include = '{}.toml'\n", n + 1));
            let last = (format!("{count}.toml"), "[[feed]]\nid = 'aa'\n".to_owned());
            let main = ("towpath.toml".to_owned(), "include = '0.toml'\n".to_owned());
            (0..count).map(file).chain([main, last]).collect()
        };
        let load_row = |count| {
            let files = row(count);
            load(&files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>())
        };
        assert_eq!(load_row(10).unwrap().feeds.len(), 1);
        let error = load_row(3000).unwrap_err();
        assert!(error.contains("more than 16 files include each other in a row"), "{error}");
    }

    #[test]
    fn errors_name_the_file() {
        let main = "include = 'feeds.d/*.toml'\n[server]\nwaiters = 5\n[[feed]]\nid = 'aa'\n";
        for (included, shown) in [
            ("[[feed]]\nid = 'bb'\nttl = 'soon'\n", "feeds.d/a.toml: line 3, column 7: feed.ttl: \"soon\""),
            ("[[feed]]\nid = 'bb'\nlang = '?'\n", "feeds.d/a.toml: line 3, column 8: feed \"bb\": lang"),
            ("\n[[feed]]\nid = 'aa'\n", "feeds.d/a.toml: line 3, column 6: the feed id \"aa\" is used twice"),
            (
                "[server]\nwaiters = 6\n",
                "feeds.d/a.toml: line 2, column 1: server.waiters is set in towpath.toml, line 3",
            ),
            ("[server\n", "feeds.d/a.toml: line 1, column 8: "),
            (
                "include = 'towpath.toml'",
                "feeds.d/a.toml: line 1, column 11: include: the files include each other",
            ),
            (
                "include = 'none.toml'",
                "feeds.d/a.toml: line 1, column 11: include \"none.toml\": there is no file",
            ),
            ("include = 5", "feeds.d/a.toml: line 1, column 11: include"),
        ] {
            let error = load(&[("towpath.toml", main), ("feeds.d/a.toml", included)]).unwrap_err();
            assert!(error.contains(shown), "{included}: {error}");
        }
    }
}
