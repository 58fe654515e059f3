//! The JavaScript package: its types, its size, its names, and its tests in Node, Deno and Chromium, from the very
//! tarball that `cargo xtask package` makes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The package, installed into an empty folder outside of the checkout.
struct Installed {
    folder: tempfile::TempDir,
    tarball: PathBuf,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the folder that cargo builds into, where `cargo xtask setup` puts the tools.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a command to its end; the test fails if it does.
fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("node and npm are installed by `cargo xtask setup`");
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}\n{errors}");
    output
}

fn install() -> Installed {
    let folder = tempfile::tempdir().unwrap();
    let mut pack = Command::new("node");
    pack.arg(root().join("clients/js/tools/pack.mjs")).arg(folder.path().join("packed"));
    pack.env("TOWPATH_JS_MODULES", target().join("js-tools"));
    let printed = String::from_utf8(succeeds(&mut pack).stdout).unwrap();
    let tarball = PathBuf::from(printed.trim());
    let dependency = format!("file:{}", tarball.display());
    let package =
        serde_json::json!({"private": true, "type": "module", "dependencies": {"towpath": dependency}});
    std::fs::write(folder.path().join("package.json"), package.to_string()).unwrap();
    let mut npm = Command::new("npm");
    // Nothing but the tarball: the package has no dependencies.
    npm.args(["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
    succeeds(npm.current_dir(folder.path()));
    Installed { folder, tarball }
}

impl Installed {
    /// Copies the tests beside the installed package.
    fn with_tests(self) -> Self {
        let tests = self.folder.path().join("test");
        std::fs::create_dir(&tests).unwrap();
        for entry in std::fs::read_dir(root().join("clients/js/test")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), tests.join(entry.file_name())).unwrap();
        }
        self
    }

    fn node(&self) -> Command {
        let mut node = Command::new("node");
        self.with_environment(&mut node);
        node
    }

    /// Lets a command find the package and the program.
    fn with_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.current_dir(self.folder.path()).env("TOWPATH_PROGRAM", env!("CARGO_BIN_EXE_towpath"));
        command.env("TOWPATH_ROOT", root()).env("TOWPATH_TARBALL", &self.tarball);
        command.env_remove("TOWPATH_TOKEN").env_remove("TOWPATH_READ_TOKEN")
    }
}

/// The implementation agrees with the declarations, and both with `tsc --strict`.
#[test]
fn the_package_is_typed() {
    let tools = target().join("js-tools/node_modules");
    let mut tsc = Command::new("node");
    tsc.arg(tools.join("typescript/bin/tsc")).arg("--project").arg(root().join("clients/js"));
    succeeds(tsc.arg("--typeRoots").arg(tools.join("@types")));
}

/// Node's own runner, on every file of `clients/js/test`.
///
/// With `TOWPATH_KILLS`, as `cargo xtask client-kills` sets it, on that with kills only.
#[test]
fn the_tests_in_node() {
    let installed = install().with_tests();
    let mut tests: Vec<PathBuf> = std::fs::read_dir(installed.folder.path().join("test"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".test.js"))
        .collect();
    tests.sort();
    assert!(tests.len() >= 5);
    let has_kills_only = std::env::var_os("TOWPATH_KILLS").is_some();
    tests.retain(|path| !has_kills_only || path.ends_with("kill.test.js"));
    // A step that never comes fails its test, and does not hang the run. Milliseconds.
    let limit = if has_kills_only { "--test-timeout=3600000" } else { "--test-timeout=300000" };
    succeeds(installed.node().args(["--test", "--test-reporter=spec", limit]).args(tests));
}

/// Deno, by its own runner: following, publishing, states in files.
#[test]
fn the_tests_in_deno() {
    let installed = install().with_tests();
    let mut deno = Command::new(target().join("venv/bin/deno"));
    // The compiler's test has the types; nothing is downloaded.
    deno.args([
        "test",
        "--allow-all",
        "--no-check",
        "--cached-only",
        "test/follow.test.js",
        "test/parts.test.js",
    ]);
    succeeds(installed.with_environment(&mut deno).env("DENO_DIR", installed.folder.path().join("deno")));
}

/// Chromium: another origin, a server that restarts, timers that jump, and the page below `examples/`.
#[test]
fn the_tests_in_a_browser() {
    let installed = install().with_tests();
    let mut node = installed.node();
    node.arg("test/browser.mjs").env("TOWPATH_BROWSER_MODULES", target().join("browser"));
    succeeds(&mut node);
}
