//! Commands that documents name in their text, or in blocks that are not run: the program has them, with their flags.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use super::Source;
use super::blocks::Document;

/// Fails with every command that the program does not have.
pub(super) fn check(documents: &[Source], program: &Path) -> Result<(), String> {
    let mut helps = Helps { program, texts: HashMap::new() };
    let mut faults = Vec::new();
    for source in documents {
        for (line, mention) in mentions(&Document::parse(&source.text)) {
            let words = words(mention);
            if let Err(why) = helps.judge(&words) {
                faults.push(format!("{}:{line}: `{mention}`: {why}", source.name));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Code in the text, and lines of blocks that are not run.
fn mentions<'a>(document: &Document<'a>) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for &(number, line) in &document.prose {
        found.extend(line.split('`').skip(1).step_by(2).map(|code| (number, code)));
    }
    for block in document.in_language("console").filter(|block| block.not_run.is_some()) {
        let commands = (block.line + 1..).zip(&block.lines);
        found.extend(commands.filter_map(|(number, line)| Some((number, line.strip_prefix("$ ")?))));
    }
    found.retain(|(_, code)| ["towpath ", "cargo xtask "].iter().any(|program| code.starts_with(program)));
    found
}

/// Words of a command up to a pipe, without the marks of optional parts.
fn words(mention: &str) -> Vec<&str> {
    let command = mention.split(['|', '<', '>', ';', '&', '#']).next().unwrap_or_default();
    command.split_whitespace().map(|word| word.trim_matches(['[', ']', '…', ',', '(', ')'])).collect()
}

/// Help texts of the program's commands, each asked for once.
struct Helps<'a> {
    program: &'a Path,
    texts: HashMap<Vec<String>, Option<String>>,
}

impl Helps<'_> {
    fn judge(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["towpath", rest @ ..] => self.judge_towpath(rest),
            ["cargo", "xtask", name, ..] if is_name(name) => {
                let line = format!("cargo xtask {name}");
                let has = |help: &str| help.split(['\n', ';']).any(|one| one.trim_start().starts_with(&line));
                if has(crate::HELP) { Ok(()) } else { Err("no such command".into()) }
            }
            _ => Ok(()),
        }
    }

    fn judge_towpath(&mut self, words: &[&str]) -> Result<(), String> {
        let mut names: Vec<String> = Vec::new();
        let mut help = self.text(&names).ok_or("the program has no help")?;
        for name in words.iter().take_while(|word| is_name(word)) {
            if !help.contains("\nCommands:") {
                break;
            }
            names.push((*name).to_owned());
            help = self.text(&names).ok_or("no such command")?;
        }
        for flag in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
            let flag = flag.split('=').next().unwrap_or(flag);
            let stops = |rest: &str| !rest.starts_with(|c: char| c == '-' || c.is_alphanumeric());
            if !help.split(flag).skip(1).any(stops) {
                return Err(format!("no flag {flag}"));
            }
        }
        Ok(())
    }

    fn text(&mut self, names: &[String]) -> Option<String> {
        let program = self.program;
        let text = self.texts.entry(names.to_owned()).or_insert_with(|| {
            let output = Command::new(program).args(names).arg("--help").output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        });
        text.clone()
    }
}

/// Returns true for the name of a command, and not for a placeholder or a flag.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_text_are_found() {
        let text = "Use `towpath put FEED` or `towpath.toml`.\n<!-- not run: why -->\n```console\n$ towpath x | y\nz\n```\n```console\n$ towpath run\n```\n";
        assert_eq!(mentions(&Document::parse(text)), [(1, "towpath put FEED"), (4, "towpath x | y")]);
        assert_eq!(words("towpath put FEED [--title=X] | cat --n"), ["towpath", "put", "FEED", "--title=X"]);
    }

    #[test]
    fn commands_and_flags_must_exist() {
        let text = |text: &str| Some(text.to_owned());
        let texts = [
            (vec![], text("\nCommands:\n  put  Publish\n")),
            (vec!["put".to_owned()], text("Options:\n  --title <T>\n")),
            (vec!["pat".to_owned()], None),
        ];
        let mut helps = Helps { program: Path::new("/none"), texts: texts.into() };
        let mut judge = |mention: &str| helps.judge(&words(mention));
        for good in ["towpath put a --title=b", "towpath put a b --title c", "cargo xtask test", "towpath"] {
            assert_eq!(judge(good), Ok(()), "{good}");
        }
        for wrong in ["towpath pat", "towpath put --titles", "towpath put --tit", "cargo xtask none"] {
            assert!(judge(wrong).is_err(), "{wrong}");
        }
    }
}
