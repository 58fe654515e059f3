//! From the texts of a configuration to its values. Errors name the file, the line and the key, and show no secret.
//!
//! The parser's own errors print the line, with whatever secret is in it. Logs and tickets would then have it.
//!
//! The first error does not end the reading: what it is at is removed, and the rest is read again. So all errors are
//! found at once, with the messages of the types themselves.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::DeTable;
use towpath_client::redact;

use super::Config;
use super::environment::{self, EnvironmentKey};
use super::error::ConfigProblem;
use super::files::ConfigTexts;
use super::hints::with_hint;
use super::include::{Includer, without_include};
use super::problems::ValueProblem;
use super::server::ServerConfig;
use super::tree::{self, PathStep};
use super::variables::{Environment, Replacer, Variables};

/// Keys whose values, and all below, are secrets.
const SECRET_KEYS: [&str; 7] = ["tokens", "token", "hash", "readers", "headers", "secret", "cluster"];
/// Tables whose validation may blame a removed value on the others: each element stands for itself.
const DEPENDENT: [&str; 3] = ["feed", "token", "sink"];
/// Number of errors after which reading ends.
const MAX_ERRORS: usize = 100;

/// Texts of a configuration, before they are parsed.
pub(super) struct ConfigSource<'e> {
    texts: ConfigTexts,
    keys: Vec<EnvironmentKey>,
    environment: &'e Environment<'e>,
    /// Problems of reading the texts.
    problems: Vec<ConfigProblem>,
}

/// Values of a configuration, as far as they can be read.
pub(super) struct ReadConfig<'a> {
    /// `None` if what is left is no configuration.
    pub(super) config: Option<Config>,
    pub(super) problems: Vec<ConfigProblem>,
    variables: Variables,
    /// The tree without what could not be read. It is there once there was an error.
    tree: Option<DeTable<'a>>,
    /// Ways to the elements of tables from which something was removed.
    damaged: Vec<usize>,
    /// True if a whole feed was removed.
    is_incomplete: bool,
}

/// A parsed and merged configuration.
struct ConfigTree<'a> {
    table: DeTable<'a>,
    variables: Variables,
    /// Places of texts whose variables could not be replaced.
    unreplaced: Vec<usize>,
    problems: Vec<ConfigProblem>,
    /// True if a text is no TOML.
    is_broken: bool,
}

impl<'e> ConfigSource<'e> {
    /// Collects the text of a file with what it includes, and the environment.
    pub(super) fn new(text: &str, path: &Path, folder: &Path, environment: &'e Environment<'e>) -> Self {
        let mut texts = ConfigTexts::default();
        let mut problems = Vec::new();
        let start = texts.add(path.display().to_string(), Some(path.to_owned()), text.to_owned());
        let chain = path.canonicalize().into_iter().collect();
        Includer { folder, texts: &mut texts, problems: &mut problems, chain }.include(text, start);
        let keys = environment::read(environment, &mut texts);
        Self { texts, keys, environment, problems }
    }

    /// Paths of the files.
    pub(super) fn files(&self) -> Vec<std::path::PathBuf> {
        self.texts.paths()
    }

    /// Parses the texts, and reads their values.
    pub(super) fn read(&self, folder: &Path) -> ReadConfig<'_> {
        let ConfigTree { table, variables, problems, is_broken, .. } = self.tree(folder);
        // What a parser makes of a broken text has errors that nobody made, and secrets where keys should be.
        if is_broken {
            let (tree, damaged) = (Some(table), Vec::new());
            return ReadConfig { config: None, problems, variables, tree, damaged, is_incomplete: true };
        }
        match deserialize(table) {
            Ok(config) if problems.is_empty() => {
                let config = Some(config);
                ReadConfig {
                    config,
                    problems,
                    variables,
                    tree: None,
                    damaged: Vec::new(),
                    is_incomplete: false,
                }
            }
            _ => self.recover(folder),
        }
    }

    /// Reads where the data folder is, and nothing else. `None` if a mistake leaves it open.
    pub(super) fn data_folder(&self, folder: &Path) -> Option<PathBuf> {
        let ConfigTree { table, problems, .. } = self.tree(folder);
        if !problems.is_empty() {
            return None;
        }
        // Not by the types: a mistake elsewhere in the file must not keep a command from finding the data.
        let named = table.get("server").and_then(|server| server.get_ref().get("data"));
        let Some(named) = named else { return Some(folder.join(ServerConfig::default().data)) };
        named.get_ref().as_str().map(|named| folder.join(named))
    }

    fn tree(&self, folder: &Path) -> ConfigTree<'_> {
        let mut problems = self.problems.clone();
        let mut table = DeTable::new();
        let mut is_broken = false;
        for text in self.texts.iter().filter(|text| text.path.is_some()) {
            let (parsed, errors) = DeTable::parse_recoverable(&text.text);
            is_broken |= !errors.is_empty();
            for error in errors {
                // A description of the grammar only: it has nothing of the text.
                let at = error.span().map(|span| text.start + span.start);
                problems.push(self.texts.problem(at, error.message().to_owned()));
            }
            // The first text is the main file, into which the others are merged in the order of their
            // inclusion.
            if text.start == 0 {
                table = parsed.into_inner();
                continue;
            }
            let mut duplicates = Vec::new();
            let included = tree::shift_table(without_include(parsed), text.start);
            tree::merge(&mut table, included, &mut Vec::new(), &mut duplicates);
            for duplicate in duplicates {
                let first = self.texts.problem(Some(duplicate.first), String::new());
                let line = first.place.map(|(line, _)| format!(", line {line}")).unwrap_or_default();
                let message = format!("{} is set in {}{line}, too", duplicate.key, first.source);
                problems.push(self.texts.problem(Some(duplicate.second), message));
            }
        }
        environment::apply(&self.keys, &self.texts, &mut table, &mut problems);
        let mut replacer = Replacer {
            folder,
            environment: self.environment,
            variables: Variables::default(),
            errors: Vec::new(),
        };
        replacer.table(&mut table);
        let Replacer { variables, errors, .. } = replacer;
        let unreplaced = errors.iter().map(|error| error.at).collect();
        problems.extend(errors.into_iter().map(|error| self.texts.problem(Some(error.at), error.message)));
        ConfigTree { table, variables, unreplaced, problems, is_broken }
    }

    /// Reads what can be read, and collects all errors.
    fn recover(&self, folder: &Path) -> ReadConfig<'_> {
        let ConfigTree { mut table, variables, unreplaced, mut problems, .. } = self.tree(folder);
        let (mut damaged, mut is_incomplete) = (Vec::new(), false);
        // The table of each value that was removed, and the value's name.
        let mut removed: Vec<(Option<usize>, String)> = Vec::new();
        let mut config = None;
        // The deserializer stops at its first error. Removing the value that it is about shows the next one, so
        // that all mistakes come in one answer.
        while problems.len() < MAX_ERRORS {
            let error = match deserialize(table.clone()) {
                Ok(read) => {
                    config = Some(read);
                    break;
                }
                Err(error) => error,
            };
            let at = error.span().map(|span| span.start);
            // A value that was removed for its own error is not missing.
            let is_missing = |(table, name): &(Option<usize>, String)| {
                *table == at && error.message() == format!("missing field `{name}`")
            };
            let is_told = at.is_some_and(|at| unreplaced.contains(&at)) || removed.iter().any(is_missing);
            if !is_told {
                problems.push(self.describe(&table, &error, &variables));
            }
            let name = at.and_then(|at| tree::keys_at(&table, at).pop());
            // Without a place nothing can be removed, and the same error would come again.
            let Some(steps) = at.and_then(|at| tree::remove_at(&mut table, at)) else { break };
            is_incomplete |= steps == [PathStep::Key("feed".into())];
            damaged.extend(tree::place_of(&table, &steps[..steps.len().min(2)]));
            removed.extend(name.map(|name| (tree::place_of(&table, &steps), name)));
        }
        ReadConfig { config, problems, variables, tree: Some(table), damaged, is_incomplete }
    }

    /// Describes an error of the values.
    fn describe(&self, table: &DeTable<'_>, error: &toml::de::Error, variables: &Variables) -> ConfigProblem {
        let Some(span) = error.span() else {
            // Without a place the error ends with the key, in a line of its own.
            return self.texts.problem(None, variables.hide(redact::text(error.to_string().trim_end())));
        };
        let keys = tree::keys_at(table, span.start);
        // A message may quote the value, and ends in logs and in bug reports. A field that is missing has no value that could be shown, and its name is ours.
        let is_missing = error.message().starts_with("missing field");
        let is_secret = !is_missing && is_secret(&keys);
        let message = in_plain_words(error.message());
        let message = with_hint(&message, &keys[..keys.len().saturating_sub(1)]);
        let message = if is_secret { unquoted(&message) } else { redact::text(&message) };
        let key = if keys.is_empty() { String::new() } else { format!("{}: ", keys.join(".")) };
        self.texts.problem(Some(span.start), variables.hide(format!("{key}{message}")))
    }

    /// Adds the problems of validation to those of reading.
    pub(super) fn with_values(
        &self,
        read: ReadConfig<'_>,
        found: Vec<ValueProblem>,
        folder: &Path,
    ) -> Vec<ConfigProblem> {
        let ReadConfig { mut problems, variables, tree, damaged, is_incomplete, .. } = read;
        if found.is_empty() {
            return problems;
        }
        let table = tree.unwrap_or_else(|| self.tree(folder).table);
        for ValueProblem { path, message } in found {
            let element = tree::place_of(&table, &path[..path.len().min(2)]);
            let is_dependent =
                matches!(&path[..], [PathStep::Key(key), ..] if DEPENDENT.contains(&key.as_str()));
            let is_doubtful = element.is_some_and(|element| damaged.contains(&element)) || is_incomplete;
            // It may be about a value that was removed.
            if is_dependent && is_doubtful {
                continue;
            }
            let at = tree::place_of(&table, &path);
            problems.push(self.texts.problem(at, variables.hide(message)));
        }
        problems
    }
}

fn deserialize(table: DeTable<'_>) -> Result<Config, toml::de::Error> {
    Config::deserialize(toml::Deserializer::from(Spanned::new(0..0, table)))
}

/// Names types as the reference does, instead of as Rust does. The message has one line.
fn in_plain_words(message: &str) -> String {
    let message = message.trim().replace('\n', " ");
    let Some((given, expected)) = message.rsplit_once(", expected ") else { return message };
    // An error within an inline table ends with its key.
    let (expected, within) = expected.split_once(" in `").unwrap_or((expected, ""));
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not below 0",
        "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => "a whole number above 0",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text",
        "path string" => "a path",
        "a sequence" => "a list",
        // The name is that of a type of the program.
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    let given = match given {
        "invalid type: sequence" => "invalid type: a list",
        "invalid type: map" => "invalid type: a table",
        other => other,
    };
    let within = if within.is_empty() { String::new() } else { format!(" in `{within}") };
    format!("{given}, expected {expected}{within}")
}

/// Removes what an error quotes of the text.
fn unquoted(message: &str) -> String {
    let mut shown = String::new();
    // `invalid type: string "x", expected y`: what was expected is ours, and quoted with the other mark.
    let (given, expected) = message.rsplit_once(", expected ").unwrap_or((message, ""));
    for (index, part) in given.split(['"', '`']).enumerate() {
        shown.push_str(if index % 2 == 0 { part } else { "…" });
        // An escaped mark within a quotation would swap inside and outside.
        if part.ends_with('\\') {
            shown.push('…');
            break;
        }
    }
    if expected.is_empty() { shown } else { format!("{shown}, expected {expected}") }
}

/// Returns true if a value is secret, or may have a secret within: it or a table around it is named in [`SECRET_KEYS`].
fn is_secret(keys: &[String]) -> bool {
    // The table `[[token]]` has open values too, such as rights.
    let within = if keys.len() > 1 && keys[0] == "token" { &keys[1..] } else { keys };
    within.iter().any(|key| SECRET_KEYS.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("towpath.toml")).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, shown) in [
            ("[server]\nlisten = \"x\"\n", "line 2, column 10: server.listen: \"x\" is not an address"),
            (
                "[[feed]]\nid = \"aa\"\nttl = \"soon\"\n",
                "line 3, column 7: feed.ttl: \"soon\" is not a duration",
            ),
            (
                "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 5",
                "line 4, column 7: feed.source.url: invalid type",
            ),
            ("a = \n", "line 1, column 5: "),
            ("[server]\n'ä' = 1\n", "line 2, column 1: server.ä: unknown field"),
        ] {
            let error = error(text);
            assert!(error.contains(&format!("towpath.toml: {shown}")), "{text}: {error}");
        }
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        let shown = error("[[token]]\nfeeds = [\"aa\"]\n");
        assert!(shown.contains("missing field `name`"), "{shown}");
    }

    /// Each of these has a secret in a line with a mistake.
    #[test]
    fn no_error_shows_a_secret() {
        for text in [
            "[server]\ntokens = \"hush\"\n",
            "[server]\ntokens = [\"hush]\n",
            "[server]\ntokens = [\"hush\" \"b\"]\n",
            "[server]\ntoken = \"hush\"\n",
            "[server]\ntokens = hush\n",
            "[server]\ncluster = \"\nnats://u:hush@host?name=a\"\n",
            "[server]\ntokens = [\"a\", { hush = 1 }]\n",
            "[server]\ncluster = \"nats:/u:hush@host\"\n",
            "[server]\ncluster = \"http://u:hush@host\"\n",
            "[server]\nbase_url = \"ftp://u:hush@host/\"\n",
            "[export]\nto = \"x\"\nbase_url = \"ftp://u:hush@host/\"\n",
            "[xmpp]\nserver = 'a:1'\njid = 'a'\nsecret = [\"hush\"]\n",
            "[xmpp]\nserver = 'a:1'\njid = 'a'\nsecret = \"hush\n",
            "[[token]]\nname = \"a\"\nrights = ['read']\nhash = \"hush\"\n",
            "[[token]]\nname = \"a\"\nrights = ['read']\ntoken = [\"hush\"]\n",
            "[[feed]]\nid = \"aa\"\nreaders = [\"hush\", 5]\n",
            "[[feed]]\nid = \"aa\"\nreaders = [{ token = \"hush\", filter = { tag = \"x\" } }]\n",
            "[[feed]]\nid = \"aa\"\nreaders = [{ token = [\"hush\"], filter = {} }]\n",
            "[[feed]]\nid = \"aa\"\nreaders = \"hush\"\n",
            "[[feed]]\nid = \"aa\"\nreaders = [\"hush\", \"hush\"]\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'http://x/'\nheaders = \"hush\"\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'http://x/'\nheaders = { a = [\"hush\"] }\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'http://x/'\nheaders = { a = \"hush\\n\" }\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'ftp://u:hush@x/'\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nfollow = 'htps://x/?key=hush'\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nfollow = 'http:/u:hush@x/'\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = ['http://u:hush@x/']\n",
        ] {
            let error = error(text);
            assert!(!error.contains("hush"), "{text}: {error}");
            assert!(error.contains("towpath.toml"), "{text}: {error}");
        }
    }

    #[test]
    fn variables_are_shown_by_name() {
        let parse = |text: &str| {
            let environment = |name: &str| match name {
                "X" => Ok("hush-hush".to_owned()),
                _ => Err(std::env::VarError::NotPresent),
            };
            Config::parse_with(text, Path::new("towpath.toml"), &environment).map_err(|e| e.to_string())
        };
        let config = parse("[xmpp]\nserver = 'a:1'\njid = 'a.example'\nsecret = 'is ${X}'").unwrap();
        assert_eq!(config.xmpp.unwrap().secret.expose(), "is hush-hush");
        let error = parse("[server]\nlisten = '${X}'\n[[feed]]\nid = '${X}'\nttl = '${X}'").unwrap_err();
        assert!(!error.contains("hush"), "{error}");
        let error = parse("[[feed]]\nid = 'aa'\nttl = '${X}'").unwrap_err();
        assert!(error.contains("\"${X}\" is not a duration"), "{error}");
    }

    #[test]
    fn all_errors_are_told_at_once() {
        let text = "[server]\nlisen = 'x'\nthreads = 0\ncache_mib = 'big'\n[[feed]]\nttl = '5m'\n[[feed]]\nid = 'aa'\n\
            lang = '?'\nhome = 5\n[[feed]]\nid = 'bb'\nlang = '?'\nimage = 'x'\n[feed.source]\nurl = 'x'\nevery = '1'\n\
            [xmpp]\nserver = 'x'\njid = 'me@x'\nsecret = '${NO_SUCH}'\n[nothing]\n";
        let Err(crate::ConfigError::Invalid(problems)) = Config::parse(text, Path::new("towpath.toml"))
        else {
            panic!("it is invalid");
        };
        let found: Vec<_> = problems.iter().map(|p| (p.place.unwrap().0, p.message.as_str())).collect();
        for (line, needle) in [
            (2, "did you mean `listen`?"),
            (3, "threads must be at least 1"),
            (4, "\"big\" is not a size"),
            (5, "missing field `id`"),
            (10, "feed.home: invalid type"),
            (17, "feed.source.every: \"1\" is not a duration"),
            (19, "server \"x\" is not a host and a port"),
            (21, "NO_SUCH"),
            (22, "nothing: unknown field"),
        ] {
            assert!(
                found.iter().any(|(at, message)| *at == line && message.contains(needle)),
                "{line} {needle}: {found:#?}"
            );
        }
        let mut places: Vec<_> = problems.iter().map(|p| p.place).collect();
        assert!(places.is_sorted(), "in the order of the file: {places:?}");
        places.dedup();
        assert_eq!(places.len(), problems.len(), "each once: {found:#?}");
    }

    /// Values of tokens are hidden; which rights there are is no secret.
    #[test]
    fn open_values_of_tokens_are_shown() {
        let error = |text: &str| Config::parse(text, Path::new("towpath.toml")).unwrap_err().to_string();
        let rights = error("[[token]]\nname = 'ci'\ntoken = 'x'\nrights = ['publsh']");
        assert!(rights.contains("`publsh`; did you mean `publish`?"), "{rights}");
        for text in [
            "[[token]]\nname = 'ci'\nrights = ['read']\ntoken = ['hush']",
            "token = 'hush'",
            "[token]\ntoken = 7777777",
        ] {
            let hidden = error(text);
            assert!(!hidden.contains("hush") && !hidden.contains("7777777"), "{hidden}");
        }
    }

    #[test]
    fn a_wrong_value_is_not_missing_as_well() {
        let text = "[[feed]]\nid = 'a'\n[[feed]]\nid = 'b'\nttl = 'soon'\n[[feed]]\nttl = '5m'\n";
        let Err(crate::ConfigError::Invalid(problems)) = Config::parse(text, Path::new("towpath.toml"))
        else {
            panic!("it is invalid");
        };
        let lines: Vec<_> = problems.iter().map(|problem| problem.place.unwrap().0).collect();
        assert_eq!(lines, [2, 4, 5, 6], "{problems:#?}");
    }

    #[test]
    fn all_errors_of_the_grammar_are_told() {
        let text = "[server]\nlisten = \nwaiters = = 5\n[[feed]]\nid = 'aa'\n";
        let error = error(text);
        assert!(error.contains("line 2, column") && error.contains("line 3, column"), "{error}");
    }
}
