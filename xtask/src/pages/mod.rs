//! Runs the commands of the documents as they stand: of all pages below `docs/`, and of the READMEs of the packages.
//!
//! A page is run if one of its lines is `<!-- run -->`, or `<!-- run: curl nginx -->` with the programs that its
//! commands need beside towpath and a shell. `setup::programs` installs those. A page with commands must be run. A block
//! that cannot be, because it needs root, another machine or the internet, has `<!-- not run: REASON -->` above it.
//!
//! - Each page has an empty folder of its own, in which everything happens. `towpath` is on the path.
//! - A fenced block whose language is followed by a file name, such as ` ```toml towpath.toml `, is written to that
//!   file before the next command. Browsers and editors ignore the name.
//! - A `toml` block without a name is a whole configuration, and `towpath config check` accepts it.
//! - The commands of `console` blocks run in order. Exported variables and the working folder last to the end of the page.
//! - Lines below a command are what it prints, in order; `…` matches anything, and lines that it prints beside them
//!   are left out. A command must succeed.
//! - A command that ends in `&` runs until the page ends. The next command waits for its lines.
//! - `127.0.0.1:8080` is free: each page has a network of its own, where this user may make one. Else pages run one after
//!   another. There is no other network: no page reaches the internet.
//! - A page that needs `postgresql` finds a server on `127.0.0.1:5432`, whose user `postgres` needs no password.
//! - A page that needs `towpath-wheel` has an environment of Python, into which `pip install towpath` installs the wheel of
//!   this checkout.
//! - A page that needs `cargo` finds the crates of this checkout under their names.
//! - `npm install towpath` installs the package of this checkout: pages that need npm begin with a `package.json` that says
//!   where it is.
//!
//! Commands that stand in the text, such as `towpath sink list`, are not run; the program must have them, with their flags.

pub(crate) mod blocks;
mod configurations;
mod coverage;
mod mentions;
mod page;
mod workers;

pub(crate) use workers::WORKER;

use std::path::{Path, PathBuf};

use crate::run::root;
use crate::{package, setup};

/// A document of the repository.
#[derive(Debug, Clone)]
struct Source {
    /// Its path below the root, as in `docs/sinks.md`.
    name: String,
    path: PathBuf,
    text: String,
}

/// A page to run, with the files that it needs.
#[derive(Debug)]
struct Job {
    name: String,
    text: String,
    programs: Vec<String>,
    /// File of the npm package.
    package: Option<PathBuf>,
    wheel: Option<PathBuf>,
}

impl Job {
    fn needs(&self, program: &str) -> bool {
        self.programs.iter().any(|needed| needed == program)
    }
}

/// Checks all documents, and runs the marked pages, or those that are named, with the program in the folder `built`.
pub(crate) fn check(built: &Path, named: &[&str]) -> Result<(), String> {
    let all = documents()?;
    coverage::check(&all)?;
    mentions::check(&all, &built.join("towpath"))?;
    let is_named = |source: &Source| named.is_empty() || named.iter().any(|name| source.is_called(name));
    let chosen: Vec<&Source> = all.iter().filter(|source| is_named(source)).collect();
    for source in &chosen {
        configurations::check(source, built)?;
    }
    let marked: Vec<&Source> =
        chosen.into_iter().filter(|source| !named.is_empty() || is_marked(&source.text)).collect();
    if marked.len() < named.len() || marked.iter().any(|source| !is_marked(&source.text)) {
        return Err(format!("of the pages {}, not all have a line `<!-- run -->`", named.join(", ")));
    }
    let mut jobs = Vec::new();
    for source in marked {
        jobs.push(job(source, built)?);
    }
    workers::run(&jobs, built)
}

/// Runs one page in this process: for a worker, which has made a network for it. An empty name is no file.
pub(crate) fn run_one(built: &str, name: &str, package: &str, wheel: &str) -> Result<(), String> {
    let all = documents()?;
    let source = all.iter().find(|source| source.name == name).ok_or_else(|| format!("no page {name}"))?;
    let programs = programs(&source.text).unwrap_or_default();
    let file = |path: &str| Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    let (package, wheel) = (file(package), file(wheel));
    let job = Job { name: source.name.clone(), text: source.text.clone(), programs, package, wheel };
    page::run(&job, Path::new(built))
}

/// Installs what a page needs, and makes the packages that it installs.
fn job(source: &Source, built: &Path) -> Result<Job, String> {
    let programs = programs(&source.text).unwrap_or_default();
    let (name, text) = (source.name.clone(), source.text.clone());
    let mut job = Job { name, text, programs, package: None, wheel: None };
    setup::programs(&job.programs)?;
    if job.needs(setup::POSTGRESQL) {
        setup::postgresql()?;
    }
    job.package = job.needs("npm").then(package::npm_tarball).transpose()?;
    job.wheel = job.needs(setup::WHEEL).then(|| package::page_wheel(built)).transpose()?;
    Ok(job)
}

/// All documents for readers, sorted: below `docs/`, at the root, and the READMEs of packages.
fn documents() -> Result<Vec<Source>, String> {
    let mut folders = vec![root(), root().join("docs")];
    for parent in ["clients", "crates"] {
        let parent = root().join(parent);
        let listed = std::fs::read_dir(&parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        folders.extend(listed.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    let mut documents = Vec::new();
    for folder in folders {
        let listed = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in listed.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            documents.push(Source { name, path, text });
        }
    }
    documents.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(documents)
}

impl Source {
    /// Returns true if an argument of the command line names this document.
    fn is_called(&self, name: &str) -> bool {
        Path::new(&self.name) == Path::new(name) || self.name == format!("docs/{name}")
    }
}

/// Returns true if a page is to be run.
fn is_marked(text: &str) -> bool {
    programs(text).is_some()
}

/// The programs that a marked page needs.
fn programs(text: &str) -> Option<Vec<String>> {
    let marks = |line: &str| {
        let inside = line.trim().strip_prefix("<!-- run")?.strip_suffix("-->")?.trim();
        if inside.is_empty() { Some("") } else { inside.strip_prefix(':') }.map(str::to_owned)
    };
    Some(text.lines().find_map(marks)?.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_pages_name_their_programs() {
        assert_eq!(programs("# A\n"), None);
        assert_eq!(programs("# A\n<!-- run -->\n"), Some(Vec::new()));
        assert_eq!(programs("<!-- run: curl nginx -->"), Some(vec!["curl".into(), "nginx".into()]));
        assert_eq!(programs("<!-- runs -->"), None);
    }

    #[test]
    fn documents_are_found_by_their_names() {
        let all = documents().unwrap();
        for name in ["README.md", "docs/sinks.md", "clients/js/README.md"] {
            assert_eq!(all.iter().filter(|source| source.name == name).count(), 1, "{name}");
        }
        let called = |name: &str| all.iter().filter(|source| source.is_called(name)).count();
        assert_eq!(
            [called("README.md"), called("sinks.md"), called("docs/sinks.md"), called("x.md")],
            [1, 1, 1, 0]
        );
    }
}
